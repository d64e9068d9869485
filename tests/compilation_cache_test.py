"""Programs that are kept between starts: where, when, and when not."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from attn_cnn_jax import compilation_cache

ROOT = Path(__file__).parent.parent
COMMAND = """
import jax
from attn_cnn_jax import command_line
command_line.run(lambda: print(jax.jit(lambda x: 2 * x)(21)))
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home, and no cache of JAX as yet."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def cache_dir():
    return jax.config.jax_compilation_cache_dir


def test_a_command_keeps_its_programs_and_finds_them_again(tmp_path):
    fast = ("JAX_COMPILATION_CACHE_DIR",)
    user = {name: value for name, value in os.environ.items() if name not in fast}
    user |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    kept = []
    for _ in range(2):
        result = subprocess.run(
            [sys.executable, "-c", COMMAND], env=user, capture_output=True, text=True
        )
        assert (result.stdout, result.stderr) == ("42\n", "")
        kept.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")})
    assert any(path.name.startswith("jit__lambda") for path in kept[0])
    assert kept[0] == kept[1]


def test_the_folder_is_for_the_user_alone(home):
    before = os.umask(0)
    try:
        compilation_cache.enable()
    finally:
        os.umask(before)
    assert cache_dir() == str(compilation_cache.folder())
    private = home / "cache" / "attn_cnn_jax"
    assert Path(cache_dir()).parent == private
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    compilation_cache.enable()  # a second start


def test_a_folder_that_others_write_to_is_refused(home):
    private = home / "cache" / "attn_cnn_jax"
    private.mkdir(parents=True)
    private.chmod(0o770)
    with pytest.warns(UserWarning, match="not kept.*written by other users"):
        compilation_cache.enable()
    assert cache_dir() is None
    private.chmod(0o755)
    compilation_cache.enable()
    assert cache_dir() is not None


def test_a_folder_of_another_user_is_refused(home, monkeypatch):
    private = home / "cache" / "attn_cnn_jax"
    private.mkdir(parents=True, mode=0o700)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.warns(UserWarning, match="not kept.*another user"):
        compilation_cache.enable()
    assert cache_dir() is None


def test_where_nothing_can_be_written_a_command_works_without(home):
    (home / "cache").write_text("a file")
    with pytest.warns(UserWarning, match="compiled programs are not kept"):
        compilation_cache.enable()
    assert cache_dir() is None


def test_without_a_home_nothing_is_kept(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(home)
    with pytest.warns(UserWarning, match="no home"):
        compilation_cache.enable()
    assert cache_dir() is None and list(home.iterdir()) == []


def test_what_the_user_has_set_holds(home):
    jax.config.update("jax_compilation_cache_dir", "")
    compilation_cache.enable()
    assert cache_dir() == ""
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        compilation_cache.enable()
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert cache_dir() is None and list(home.iterdir()) == []


def test_processors_have_folders_of_their_own(home, monkeypatch):
    here = compilation_cache.folder()
    monkeypatch.setattr(compilation_cache, "_processor", lambda: "another")
    assert compilation_cache.folder().parent == here.parent
    assert compilation_cache.folder() != here


def test_the_files_that_were_read_last_are_kept(home, monkeypatch):
    compilation_cache.enable()
    folder = compilation_cache.folder()
    for age in (1, 5, 3, 2, 4):
        path = folder / str(age)
        path.write_bytes(b"program" * 100)
        os.utime(path, (10_000 - age, 100))
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(compilation_cache, "_MOST_BYTES", 2_100)
    compilation_cache.enable()
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "3"]


def test_the_library_sets_nothing():
    code = "import jax, attn_cnn_jax.train; print(jax.config.jax_compilation_cache_dir)"
    fast = ("JAX_COMPILATION_CACHE_DIR",)
    user = {name: value for name, value in os.environ.items() if name not in fast}
    found = subprocess.run(
        [sys.executable, "-c", code], env=user, cwd=ROOT, capture_output=True, text=True
    )
    assert found.stdout == "None\n", found.stderr
