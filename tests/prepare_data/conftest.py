"""Small copies of CIFAR in every layout, with random pixels."""

import pathlib
import pickle
import struct
import tarfile
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from attn_cnn_jax.data import verified
from attn_cnn_jax.prepare_data import verify, write
from attn_cnn_jax.prepare_data.cifar import LABELS, Cifar, Split

PER_FILE = 20


class _Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2 did, as the official batches are written."""

    dispatch = dict(pickle._Pickler.dispatch)

    def _save_string(self, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)

    dispatch[str] = dispatch[bytes] = _save_string


class Copies:
    """Writers of small copies; `tiny` is what they all hold."""

    def tiny(self, name: str) -> Cifar:
        """Five files of 20 records (CIFAR-100: one of 100) and a test file of 20."""
        rng = np.random.default_rng(0)
        splits = {}
        for split, count in (("train", 5 * PER_FILE), ("test", PER_FILE)):
            images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
            labels = {
                kind: rng.integers(0, classes, count)
                for kind, classes in LABELS[name].items()
            }
            splits[split] = Split(images, labels)
        names = {
            kind: [f"{kind}_{i}" for i in range(classes)]
            for kind, classes in LABELS[name].items()
        }
        return Cifar(name, splits, names)

    def write_binary(self, cifar: Cifar, folder: pathlib.Path) -> None:
        """The official binary layout."""
        folder.mkdir(parents=True)
        for file, images, labels in self._files(cifar):
            columns = [labels[kind][:, None] for kind in LABELS[cifar.name]]
            planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            rows = np.concatenate([*columns, planes], axis=1).astype(np.uint8)
            names = {"train": "train.bin", "test": "test.bin"}
            (folder / names.get(file, f"{file}.bin")).write_bytes(rows.tobytes())
        files = {"label": "batches.meta.txt"}
        if cifar.name == "cifar100":
            files = {
                "label": "fine_label_names.txt",
                "coarse_label": "coarse_label_names.txt",
            }
        for kind, file in files.items():
            (folder / file).write_text("\n".join(cifar.label_names[kind]) + "\n\n")

    def write_python(
        self, cifar: Cifar, folder: pathlib.Path, *, python2: bool
    ) -> None:
        """The official python layout, as Python 2 or as Python 3 pickles it."""
        folder.mkdir(parents=True)
        keys = {"label": "labels"}
        if cifar.name == "cifar100":
            keys = {"label": "fine_labels", "coarse_label": "coarse_labels"}
        contents: dict[str, Any] = {}
        for file, images, labels in self._files(cifar):
            contents[file] = {
                "batch_label": f"batch {file}",
                "data": images.transpose(0, 3, 1, 2).reshape(len(images), -1),
                **{keys[kind]: labels[kind].tolist() for kind in keys},
                "filenames": [f"{i}.png" for i in range(len(images))],
            }
        if cifar.name == "cifar10":
            contents["batches.meta"] = {"label_names": cifar.label_names["label"]}
        else:
            contents["meta"] = {
                "fine_label_names": cifar.label_names["label"],
                "coarse_label_names": cifar.label_names["coarse_label"],
            }
        for file, content in contents.items():
            with (folder / file).open("wb") as out:
                pickler = _Python2Pickler if python2 else pickle.Pickler
                pickler(out, protocol=2).dump(content)
            if python2:
                data = (folder / file).read_bytes()
                data = data.replace(b"cnumpy._core.", b"cnumpy.core.")
                (folder / file).write_bytes(data)

    def write_tfrecords(self, cifar: Cifar, root: pathlib.Path) -> pathlib.Path:
        """A TFDS folder of TFRecords, made from array_record; train has two shards."""
        write.prepare(cifar, root, allow_partial=True)
        folder = verify.prepared_dir(cifar.name, root)
        for path in list(folder.glob("*.array_record-*")):
            records = ArrayRecordReader(str(path)).read_all()
            split = path.name.split(".")[0]
            shards = [records[:7], records[7:]] if "train" in split else [records]
            for i, shard in enumerate(shards):
                name = f"{split}.tfrecord-{i:05d}-of-{len(shards):05d}"
                (folder / name).write_bytes(b"".join(map(tfrecord, shard)))
            path.unlink()
        (folder / verified.FILE).unlink()
        info = folder / "dataset_info.json"
        info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
        return folder

    def pack(self, folder: pathlib.Path, archive: pathlib.Path) -> pathlib.Path:
        """A tar.gz of a folder, which is its one top-level entry."""
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            tar.add(folder, folder.name)
        return archive

    def _files(self, cifar: Cifar):
        for split, content in cifar.splits.items():
            if cifar.name == "cifar100":
                yield split, content.images, content.labels
            elif split == "test":
                yield "test_batch", content.images, content.labels
            else:
                for i in range(5):
                    rows = slice(i * PER_FILE, (i + 1) * PER_FILE)
                    labels = {k: v[rows] for k, v in content.labels.items()}
                    yield f"data_batch_{i + 1}", content.images[rows], labels


def crc32c(data: bytes) -> int:
    """CRC-32C by its definition, bit by bit through a table of nibbles."""
    table = []
    for value in range(16):
        for _ in range(4):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        crc = table[crc & 15] ^ (crc >> 4)
        crc = table[crc & 15] ^ (crc >> 4)
    return crc ^ 0xFFFFFFFF


def tfrecord(payload: bytes) -> bytes:
    """One framed record."""
    head = struct.pack("<Q", len(payload))

    def masked(data: bytes) -> bytes:
        crc = crc32c(data)
        value = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        return struct.pack("<I", value)

    return head + masked(head) + payload + masked(payload)


@pytest.fixture(scope="session")
def copies() -> Copies:
    """The writers of small copies."""
    return Copies()


@pytest.fixture(scope="session")
def frame():
    """The function that frames a payload as a TFRecord."""
    return tfrecord


@pytest.fixture(scope="session")
def assert_same():
    """A function that compares two data sets, pixel by pixel."""

    def compare(found: Cifar, expected: Cifar) -> None:
        assert found.name == expected.name
        assert found.label_names == expected.label_names
        assert found.splits.keys() == expected.splits.keys()
        for name, split in expected.splits.items():
            np.testing.assert_array_equal(found.splits[name].images, split.images)
            assert found.splits[name].labels.keys() == split.labels.keys()
            for kind, labels in split.labels.items():
                np.testing.assert_array_equal(found.splits[name].labels[kind], labels)

    return compare
