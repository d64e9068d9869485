"""Every test runs on 8 virtual CPU devices, with strict shapes and checked types."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

# Programs are compiled once for all tests and their subprocesses, and fast rather than
# to be fast: on two cores compilation is most of the time of a test.
_cache = tempfile.TemporaryDirectory(prefix="attn_cnn_jax_tests_")
os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"

import jax  # noqa: E402
import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
install_import_hook("attn_cnn_jax", "beartype.beartype")

from attn_cnn_jax import config as config_lib  # noqa: E402

ROOT = Path(__file__).parent.parent


@pytest.fixture
def x64():
    """64-bit types for one test, and for no other."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def tiny_config():
    """Builds a config that trains in seconds: `tiny_config(model, **fields)`.

    The digits in their own size, a two-layer network of width 16, an epoch of 14 steps.
    """

    def build(attention: str = "quadratic_isotropic", **fields):
        config = config_lib.base_config()
        config.model = config_lib.self_attention(attention)
        config.model.update(
            patch_size=2, width=16, num_layers=2, num_heads=4, mlp_dim=16
        )
        config.dataset.update(name="digits_8x8", crop_padding=1, flip=True)
        config.num_epochs = 2
        config.schedule.warmup_epochs = 1.0
        config.snapshot_every_epochs = 0
        config.update(fields)
        return config

    return build


class Page:
    """A page of docs/ that says how to add something of one's own, in files."""

    def __init__(self, name: str, folder: Path) -> None:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        self.folder = folder
        self.commands = re.findall(r"^\.venv/bin/python (.*)$", text, re.MULTILINE)
        for file, code in re.findall(
            r"`(\w+\.py)`[^`]*\n```python\n(.*?)```", text, re.DOTALL
        ):
            (folder / file).write_text(code, encoding="utf-8")

    def run(self, arguments: str) -> subprocess.CompletedProcess:
        """Run Python in the folder of the page's files."""
        return subprocess.run(
            [sys.executable, *arguments.split()],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
            capture_output=True,
            text=True,
        )


@pytest.fixture
def page(tmp_path):
    """Writes the files of a page of docs/ into a folder: `page("new_dataset.md")`."""
    return lambda name: Page(name, tmp_path)


@pytest.fixture
def measured(record_property):
    """Tells a measured number when all tests have run: `measured("frame", "16 ms")`."""

    def tell(name: str, text: str) -> None:
        record_property("measured", f"{name}: {text}")

    return tell


def pytest_terminal_summary(terminalreporter):
    reports = [r for outcome in terminalreporter.stats.values() for r in outcome]
    lines = [
        f"{report.nodeid}: {text}"
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == "measured"
    ]
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
