"""A pickle can hold data and nothing else."""

import os
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data import pickles
from attn_cnn_jax.prepare_data.archives import Files
from attn_cnn_jax.prepare_data.copies import find_copy


class _Calls:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function, *arguments):
        self._call = (function, arguments)

    def __reduce__(self):
        return self._call


def _load(data: bytes):
    return pickles.load(Files("here", {"batch": lambda: data}), "batch")


def test_a_malicious_batch_is_refused_by_name_and_not_run(copies, tmp_path):
    copies.write_python(copies.tiny("cifar10"), tmp_path / "c", python2=True)
    attack = _Calls(os.system, f"touch {tmp_path / 'owned'}")
    (tmp_path / "c" / "data_batch_4").write_bytes(pickle.dumps({"data": attack}, 2))
    with pytest.raises(UserError, match=r"data_batch_4 .* asks for posix\.system"):
        find_copy(tmp_path / "c").read()
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [eval, getattr, np.load, np.frombuffer])
def test_no_other_name_is_allowed(protocol, function):
    with pytest.raises(UserError, match="asks for|uses the instruction"):
        _load(pickle.dumps({"a": _Calls(function, "1")}, protocol))


def test_what_is_allowed_cannot_be_bent():
    text = b"U\x01a"
    ndarray = b"cnumpy\nndarray\n"
    with pytest.raises(UserError, match="takes no arguments"):  # ndarray(10 ** 12)
        _load(b"}" + text + ndarray + b"\x8a\x06\x00\x10\xa5\xd4\xe8\x00\x85Rs.")
    reconstruct = b"cnumpy.core.multiarray\n_reconstruct\n"
    with pytest.raises(UserError, match="unknown type"):
        _load(b"}" + text + reconstruct + b"cnumpy\ndtype\nK\x00" + text + b"\x87Rs.")
    with pytest.raises(UserError, match="asks for 'zlib'"):
        _load(b"}" + text + b"c_codecs\nencode\n" + text + b"U\x04zlib\x86Rs.")
    with pytest.raises(UserError, match="alters what is no array"):
        _load(b"}" + text + reconstruct + b"}U\x0c__defaults__Nsbs.")


MEGABYTE = b"X" + (2**20).to_bytes(4, "little") + b"a" * 2**20
HOSTILE = {
    "a key of a million levels": b"}" + b")" + b"\x85" * 10**6 + b"Ns.",
    "a key of 2 ** 60 parts": b"}" + b")" + b"2\x86" * 60 + b"Ns.",
    "the same by its number": b"})q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"Ns.",
    "memory for 2 ** 31 numbers": b"}r\xff\xff\xff\x7fNNs.",
    "a terabyte of bytes": b"}\x8e" + (2**40).to_bytes(8, "little") + b"Ns.",
    "a megabyte, encoded a million times": (
        b"}U\x01a](c_codecs\nencode\nq\x00" + MEGABYTE + b"\x85q\x01"
        b"R" + b"h\x00h\x01R" * 2**20 + b"es."
    ),
    "a name of 2 ** 90 lists": (
        b"}(U\x01a]q\x01"
        + b"".join(b"U\x01%c](h\x01h\x01eq\x01" % (i + 33) for i in range(90))
        + b"U\x0blabel_namesh\x01u."
    ),
    "types in types": b"}cnumpy\ndtype\n](U\x01aU\x01bte\x85RNs.",
    "a field of no name": b"}\x88Ns.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_memory_and_no_time_is_given(name):
    """Each ended the process, hung or took all memory in numpy's or C's hands."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, limits[1]))
    try:
        if name == "a name of 2 ** 90 lists":
            content = _load(HOSTILE[name])
            with pytest.raises(UserError, match="of type list"):
                pickles.text(content["label_names"])
            return
        with pytest.raises(UserError, match="not a batch of CIFAR"):
            _load(HOSTILE[name])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("protocol", [2, 4])
def test_arrays_and_bytes_are_read(protocol):
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    content = _load(pickle.dumps({b"data": array, "labels": [1, 2]}, protocol))
    np.testing.assert_array_equal(content["data"], array)
    assert content["labels"] == [1, 2]


def test_a_truncated_batch_is_refused():
    data = pickle.dumps({"data": np.zeros(100, np.uint8)}, 2)
    for length in (0, 10, len(data) // 2, len(data) - 1):
        with pytest.raises(UserError, match="not a batch of CIFAR"):
            _load(data[:length])
    with pytest.raises(UserError, match="holds no dictionary"):
        _load(pickle.dumps([1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((20, 3071), np.uint8)}, r"holds uint8 \[20, 3071\]"),
        ({"data": np.zeros((20, 3072), np.float32)}, "array is of 'f4', not uint8"),
        ({"data": None}, "has no 'data'"),
        ({"labels": [1] * 19}, "labels are not a number for each"),
        ({"labels": ["1"] * 20}, "labels are not a number for each"),
    ],
)
def test_a_batch_of_other_contents_is_refused(change, message, copies, tmp_path):
    copies.write_python(copies.tiny("cifar10"), tmp_path / "c", python2=False)
    path = tmp_path / "c" / "data_batch_1"
    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()) | change, 2))
    with pytest.raises(UserError, match=message):
        find_copy(tmp_path / "c").read()


@pytest.mark.parametrize("label", [-1, 10, 10**30])
def test_labels_beyond_the_classes_are_refused(label, copies, tmp_path):
    copies.write_python(copies.tiny("cifar10"), tmp_path / "c", python2=False)
    path = tmp_path / "c" / "test_batch"
    content = pickle.loads(path.read_bytes())
    content["labels"][7] = label
    path.write_bytes(pickle.dumps(content, 2))
    cifar = find_copy(tmp_path / "c").read()
    with pytest.raises(UserError, match="record 7 has the label"):
        cifar.check("it", allow_partial=True)
