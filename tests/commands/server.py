"""Runs commands in children of one process, for the imports take longer than the rest.

A request is a line of JSON: {"command": module and arguments, "folder": the current
directory, "seconds": the longest it may take}. The answer is one too: {"status": null
after so many seconds, "out": what it printed, "err": what on stderr}.
"""

import importlib
import json
import os
import pathlib
import runpy
import select
import signal
import sys
import traceback
import warnings

# What the commands import, but for the modules that define flags on being imported.
LIBRARIES = (
    "tensorflow_datasets",
    "sklearn.datasets",
    "sklearn.model_selection",
    "attn_cnn_jax.analysis.figures",
    "attn_cnn_jax.analysis.viewer",
    "attn_cnn_jax.bench",
    "attn_cnn_jax.command_line",
    "attn_cnn_jax.interop",
    "attn_cnn_jax.prepare_data.verify",
    "attn_cnn_jax.results.tables",
    "attn_cnn_jax.theory",
    "attn_cnn_jax.theory.fit",
    "attn_cnn_jax.train",
)


def serve() -> None:
    for library in LIBRARIES:
        importlib.import_module(library)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(**request)), flush=True)


def answer(command: list[str], folder: str, seconds: float) -> dict:
    streams = [os.memfd_create(name) for name in ("out", "err")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking
        child = os.fork()
    if child == 0:
        run(command, folder, *streams)
    watched = os.pidfd_open(child)
    ended = select.select([watched], [], [], seconds)[0]
    try:
        os.killpg(child, signal.SIGKILL)  # and what it has started
    except ProcessLookupError:
        pass
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = [pathlib.Path(f"/dev/fd/{stream}").read_bytes() for stream in streams]
    for number in (watched, *streams):
        os.close(number)
    out, err = (text.decode(errors="surrogateescape") for text in texts)
    return {"status": status if ended else None, "out": out, "err": err}


def run(command: list[str], folder: str, out: int, err: int) -> None:
    """Be the command, as `python -m` is; does not return."""
    status = 1
    try:
        os.setsid()
        for stream, number in ((os.open(os.devnull, 0), 0), (out, 1), (err, 2)):
            os.dup2(stream, number)
        os.chdir(folder)
        sys.argv = ["", *command[1:]]
        sys.path.insert(0, "")
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else bool(exit.code)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
