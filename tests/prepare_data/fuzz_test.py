"""Damaged and doctored files of every format: the right values, or one line."""

import contextlib
import gzip
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from array_record.python.array_record_module import (
    ArrayRecordReader,
    ArrayRecordWriter,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from attn_cnn_jax import data
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.config import base_config
from attn_cnn_jax.data import verified
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.state_files import read_state
from attn_cnn_jax.prepare_data import verify, write
from attn_cnn_jax.prepare_data.copies import find_copy

SECONDS, BYTES = 60, 2**32  # for a case; most take milliseconds and nothing
Values = dict[str, np.ndarray]


# What is read ------------------------------------------------------------------------


def load(folder: pathlib.Path) -> Values:
    """A prepared folder, as a training reads it."""
    dataset = base_config().dataset
    dataset.update(name="cifar10", data_dir=str(folder))
    loaded = data.load(dataset)
    values: Values = {}
    for kind in ("train", "test"):
        split = getattr(loaded, kind)
        order = np.argsort([image.tobytes() for image in split.images])
        values[kind] = split.images[order]
        values[f"{kind} labels"] = split.labels[order]
    return values


def copy(folder: pathlib.Path) -> Values:
    """A copy of CIFAR, as `prepare_data` reads it."""
    cifar = find_copy(folder, "cifar10").read()
    cifar.check("it", allow_partial=False)
    values: Values = {}
    for kind, split in cifar.splits.items():
        assert split.images.shape[1:] == (32, 32, 3) and split.images.dtype == np.uint8
        values.update({kind: split.images, f"{kind} labels": split.labels["label"]})
    return values


def packed(folder: pathlib.Path) -> Values:
    """The archive in a folder."""
    return copy(next(folder.iterdir()))


def state(folder: pathlib.Path) -> Values:
    """The weights in a folder."""
    return read_state(next(folder.iterdir()))


def picture(folder: pathlib.Path) -> Values:
    """An image of the user's, for a model of 8 x 8 pixels."""
    split = data.Split(np.zeros((1, 8, 8, 3), np.uint8), np.zeros(1, np.int32))
    dataset = data.Dataset(("one",), (0.5,) * 3, (1.0,) * 3, split, split)
    images = choose_images(dataset, [str(next(folder.iterdir()))]).images
    assert images.shape == (1, 8, 8, 3) and images.dtype == np.uint8
    return {"image": images}


# What is done to it ------------------------------------------------------------------

PATTERNS = [
    *(
        b"\0" * 8,
        b"\xff" * 8,
        b"\xff" * 7 + b"\x7f",
        b"\0\0\0\x80",
        b"\xff\xff\xff\x7f",
    ),
    *(b"9" * 5_000, b"[" * 30_000, b'{"a":' * 30_000, b"../../../etc/passwd\0"),
    *(
        b"\x1f\x8b\x08",
        b"\x89PNG\r\n\x1a\n",
        b"PK\x03\x04",
        b"\n",
        b"{}",
        b"-1",
        b"1e999",
    ),
]
VALUES: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63, 2**64, 10**400, 1e308, float("nan"), 0.5),
    *(
        "",
        "-1",
        "9" * 5_000,
        "../../x",
        "/etc/passwd",
        "{SPLIT.__class__}",
        "a" * 10**6,
    ),
    *("payload.Text", "tensorflow_datasets.core.features.video_feature.Video"),
    *([], {}, [None], {"": {}}, {"payload.Text": {"type": "payload.Text"}}),
]


def damaged(draw: Callable[..., Any], content: bytes) -> bytes:
    """Flip, overwrite, cut off, cut out or splice in."""
    for _ in range(draw(st.integers(1, 3))):
        size = len(content)
        place = st.integers(0, max(size - 1, 0))
        at, other = draw(place), draw(place)
        if draw(st.booleans()):  # heads and tails decide more than what is between
            at = draw(st.integers(0, 400)) if draw(st.booleans()) else size - at % 400
        length = draw(st.sampled_from([1, 2, 8, 100, 5_000]))
        head, tail = content[:at], content[at:]
        match draw(
            st.sampled_from(["flip", "write", "insert", "cut", "gap", "splice"])
        ):
            case "flip" if tail:
                tail = bytes([tail[0] ^ 1 << draw(st.integers(0, 7))]) + tail[1:]
            case "write":
                pattern = draw(st.sampled_from(PATTERNS))
                tail = pattern + tail[len(pattern) :]
            case "insert":
                tail = draw(st.sampled_from(PATTERNS)) + tail
            case "cut":
                tail = b""
            case "gap":
                tail = tail[length:]
            case "splice":
                tail = content[other : other + length] + tail
        content = head + tail
    return content


def altered(draw: Callable[..., Any], content: bytes) -> bytes:
    """Give one place of a JSON text another value, of any type and size."""
    value = json.loads(content)
    parent, key, here = {"": value}, "", value
    while isinstance(here, dict | list) and here and draw(st.integers(0, 4)):
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        parent, key = here, draw(st.sampled_from(keys))
        here = parent[key]
    new = draw(st.sampled_from([*VALUES, [here] * 50, {"a": here}]))
    if isinstance(parent, dict) and draw(st.booleans()):
        parent[draw(st.sampled_from(["", "type", "../x", "a b", "id"]))] = new
    else:
        parent[key] = new
    return json.dumps(value).encode()


class Format(NamedTuple):
    """How a format is made, read and damaged; `exact` where it has checksums."""

    make: Callable[[Any, pathlib.Path], object]
    read: Callable[[pathlib.Path], Values]
    files: str = "*"
    exact: bool = False
    damage: Callable[..., bytes] = damaged
    wrap: Callable[[list[bytes], pathlib.Path], object] | None = None


def _binary(copies, folder):
    copies.write_binary(copies.tiny("cifar10"), folder / "c")


def _python(copies, folder, python2=False):
    copies.write_python(copies.tiny("cifar10"), folder / "c", python2=python2)


def _packed(copies, folder, name="c.tar.gz"):
    with tempfile.TemporaryDirectory() as scratch:
        _binary(copies, pathlib.Path(scratch))
        path = copies.pack(pathlib.Path(scratch, "c"), folder / name)
    if name.endswith(".tar"):
        path.write_bytes(gzip.decompress(path.read_bytes()))


def _records(copies, folder):
    copies.write_tfrecords(copies.tiny("cifar10"), folder)


def _prepared(copies, folder):
    write.prepare(copies.tiny("cifar10"), folder, allow_partial=False)


def _never_verified(copies, folder):
    _prepared(copies, folder)
    (verify.prepared_dir("cifar10", folder) / verified.FILE).unlink()


TENSORS = {f"layer.{i}.weight": np.full((i, 3), i, np.float32) for i in range(1, 6)}


def _npz(copies, folder):
    np.savez_compressed(folder / "state.npz", **TENSORS)


def _safetensors(copies, folder):
    pytest.importorskip("safetensors.numpy").save_file(
        TENSORS, folder / "a.safetensors"
    )


def _torch(copies, folder):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(array) for name, array in TENSORS.items()}
    torch.save({"model_state_dict": tensors, "epoch": 1}, folder / "state.pt")


def _picture(kind):
    def make(copies, folder):
        pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"a.{kind}", kind)

    return make


def _as_array_record(payloads, path):
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for payload in payloads:
        writer.write(payload)
    writer.close()


FORMATS = {
    "binary": Format(_binary, copy),
    "tar.gz": Format(_packed, packed, exact=True),
    "tar": Format(lambda *a: _packed(*a, name="c.tar"), packed),
    "pickles": Format(_python, copy),
    "pickles of Python 2": Format(lambda *a: _python(*a, python2=True), copy),
    "TFRecord": Format(_records, copy, "*.tfrecord-*", exact=True),
    "TFRecord's JSON": Format(_records, copy, "dataset_info.json", damage=altered),
    "array_record": Format(_never_verified, load, "*.array_record-*", exact=True),
    "records of it": Format(
        _never_verified, load, "*.array_record-*", wrap=_as_array_record
    ),
    "dataset_info.json": Format(
        _never_verified, load, "dataset_info.json", exact=True, damage=altered
    ),
    "features.json": Format(
        _never_verified, load, "features.json", exact=True, damage=altered
    ),
    "names and JSON": Format(_never_verified, load, "*.[jt][sx]*", exact=True),
    "verified.json": Format(
        _prepared, load, "verified.json", exact=True, damage=altered
    ),
    "what is verified": Format(_prepared, load, exact=True),
    "npz": Format(_npz, state),
    "safetensors": Format(_safetensors, state),
    "torch": Format(_torch, state),
    **{kind: Format(_picture(kind), picture) for kind in ("PNG", "JPEG", "GIF")},
    **{
        kind: Format(_picture(kind), picture) for kind in ("TIFF", "WEBP", "BMP", "PPM")
    },
}


# What must not happen meanwhile ------------------------------------------------------

FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen")
FORBIDDEN += ("socket.connect", "os.remove", "os.rename", "shutil.rmtree", "pty.spawn")
_DECODED = re.compile(r"/\.decoded_|'(train|test)\.\w+\.npy'|'index\.json'")
_watching, _seen = [False], []


def _watch(event: str, arguments: tuple) -> None:
    if not _watching[0] or _DECODED.search(str(arguments[:1])):
        return  # what is decoded is kept, and replaced where it was damaged
    if event in FORBIDDEN:
        _seen.append((event, arguments))
    elif event == "open" and isinstance(arguments[2], int):
        if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            _seen.append((event, arguments))


sys.addaudithook(_watch)


class _TooLongError(BaseException):
    """Not an `Exception`, which readers would take for damage."""


def _too_long(*unused):
    raise _TooLongError


@contextlib.contextmanager
def harmless() -> Iterator[None]:
    """Nothing is run or written, and little time and memory taken."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + BYTES
    before = signal.signal(signal.SIGALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    signal.alarm(SECONDS)
    _seen.clear()
    _watching[0] = True
    try:
        yield
    finally:
        _watching[0] = False
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert not _seen


@pytest.fixture(scope="module")
def whole():
    """The small CIFAR of these tests counts as a whole one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, count in (("train", 100), ("test", 20)):
            patch.setitem(data.CIFAR_COUNTS, name, count)
        yield


class Original:
    """A format by name, the folder of an undamaged file of it, and its values."""

    def __init__(self, name: str, folder: pathlib.Path, values: Values) -> None:
        self.name, self.folder, self.values = name, folder, values

    def __repr__(self) -> str:  # of a failure: the draws tell, no pixel does
        return self.name


@pytest.fixture(scope="module", params=FORMATS)
def original(request, copies, whole, tmp_path_factory):
    kind = FORMATS[request.param]
    folder = tmp_path_factory.mktemp("original")
    kind.make(copies, folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*was never verified")
        return Original(request.param, folder, kind.read(folder))


def _check(original: Original, drawn: st.DataObject) -> None:
    kind, folder, wanted = FORMATS[original.name], original.folder, original.values
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = pathlib.Path(scratch) / "case"
        shutil.copytree(folder, case)
        files = sorted(path for path in case.rglob(kind.files) if path.is_file())
        path = drawn.draw(st.sampled_from(files))
        if kind.wrap is None:
            path.write_bytes(kind.damage(drawn.draw, path.read_bytes()))
        else:
            payloads = ArrayRecordReader(str(path)).read_all()
            row = drawn.draw(st.integers(0, len(payloads) - 1))
            payloads[row] = kind.damage(drawn.draw, payloads[row])
            kind.wrap(payloads, path)
        try:
            with harmless():
                found = kind.read(case)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 2_000
            return
        assert all(isinstance(array, np.ndarray) for array in found.values())
        if kind.exact:
            assert found.keys() == wanted.keys()
            for name, array in wanted.items():
                np.testing.assert_array_equal(found[name], array)


def _fuzz(count: int, **options):
    checks = list(HealthCheck)
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=checks,
        phases=[Phase.generate],  # what fails is shown as it is, at once
        **options,
    )


@_fuzz(3, derandomize=True)
@given(drawn=st.data())
def test_damage_is_refused_or_does_none(original, drawn):
    _check(original, drawn)


@pytest.mark.soak
@_fuzz(int(os.environ.get("FUZZ_CASES", "100")))
@given(drawn=st.data())
def test_much_damage_is_refused_or_does_none(original, drawn):
    _check(original, drawn)
