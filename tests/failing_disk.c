/* Lets the n-th change of a file fail, as a disk does; to be preloaded.

   fail_at(n, number): the n-th call from now on that writes, makes, syncs, renames or
   removes something under the folder of FAILING_DISK fails with that errno, and so do all
   later ones until fail_at(0, 0). Returns how many calls there were since the last one.
   FAILING_DISK_AT=n in the environment is fail_at(n, ENOSPC) at the start. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_int calls, first_failure, failure;

int fail_at(int n, int number) {
    failure = number;
    first_failure = n;
    return atomic_exchange(&calls, 0);
}

__attribute__((constructor)) static void begin(void) {
    const char *n = getenv("FAILING_DISK_AT");
    if (n) fail_at(atoi(n), ENOSPC);
}

static int fails(const char *path) {
    const char *folder = getenv("FAILING_DISK");
    if (!folder || !path || strncmp(path, folder, strlen(folder))) return 0;
    int call = atomic_fetch_add(&calls, 1) + 1;
    if (!first_failure || call < first_failure) return 0;
    errno = failure;
    return 1;
}

static int file_fails(int file) {
    char name[64], path[PATH_MAX];
    int before = errno;
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t size = readlink(name, path, sizeof path - 1);
    errno = before;
    if (size < 0) return 0;
    path[size] = 0;
    return fails(path);
}

#define REAL(name) ((typeof(name) *)dlsym(RTLD_NEXT, #name))

ssize_t write(int f, const void *b, size_t n) { return file_fails(f) ? -1 : REAL(write)(f, b, n); }
ssize_t pwrite(int f, const void *b, size_t n, off_t o) { return file_fails(f) ? -1 : REAL(pwrite)(f, b, n, o); }
ssize_t pwrite64(int f, const void *b, size_t n, off64_t o) { return file_fails(f) ? -1 : REAL(pwrite64)(f, b, n, o); }
ssize_t writev(int f, const struct iovec *v, int n) { return file_fails(f) ? -1 : REAL(writev)(f, v, n); }
int fsync(int f) { return file_fails(f) ? -1 : REAL(fsync)(f); }
int fdatasync(int f) { return file_fails(f) ? -1 : REAL(fdatasync)(f); }
int ftruncate(int f, off_t n) { return file_fails(f) ? -1 : REAL(ftruncate)(f, n); }
int ftruncate64(int f, off64_t n) { return file_fails(f) ? -1 : REAL(ftruncate64)(f, n); }
int rename(const char *a, const char *b) { return fails(b) ? -1 : REAL(rename)(a, b); }
int renameat(int x, const char *a, int y, const char *b) { return fails(b) ? -1 : REAL(renameat)(x, a, y, b); }
int link(const char *a, const char *b) { return fails(b) ? -1 : REAL(link)(a, b); }
int unlink(const char *a) { return fails(a) ? -1 : REAL(unlink)(a); }
int unlinkat(int d, const char *a, int f) { return file_fails(d) ? -1 : REAL(unlinkat)(d, a, f); }
int rmdir(const char *a) { return fails(a) ? -1 : REAL(rmdir)(a); }
int mkdir(const char *a, mode_t m) { return fails(a) ? -1 : REAL(mkdir)(a, m); }

#define OPEN(name)                                                                    \
    int name(const char *path, int flags, ...) {                                      \
        va_list rest;                                                                 \
        va_start(rest, flags);                                                        \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                     \
        va_end(rest);                                                                 \
        return flags & O_CREAT && fails(path) ? -1 : REAL(name)(path, flags, mode);   \
    }
OPEN(open)
OPEN(open64)
