"""Decoded images are kept beside their dataset, and are no more than that."""

import json
import os
import pathlib
import pickle
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest

from attn_cnn_jax import data
from attn_cnn_jax.data import decoded, prepared, verified

pytestmark = pytest.mark.filterwarnings("ignore:.*was never verified")


@pytest.fixture
def folder(tfds_set, tmp_path):
    return tfds_set(tmp_path)


@pytest.fixture
def load(fields, tmp_path):
    return lambda: data.load(fields("mnist", tmp_path))


@pytest.fixture
def no_decoding(monkeypatch):
    """Makes a start that decodes a failure."""

    def refuse(*unused):
        raise AssertionError("it was decoded")

    return lambda: monkeypatch.setattr(prepared, "materialise", refuse)


def kept_in(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob(".decoded_*"))


def assert_same(one: data.Dataset, other: data.Dataset) -> None:
    assert one.class_names == other.class_names
    assert (one.mean, one.std) == (other.mean, other.std)
    for kind in ("train", "test"):
        a, b = getattr(one, kind), getattr(other, kind)
        assert a.images.dtype == b.images.dtype and a.labels.dtype == b.labels.dtype
        np.testing.assert_array_equal(a.images, b.images)
        np.testing.assert_array_equal(a.labels, b.labels)
        assert (a.ids is None) == (b.ids is None)
        assert a.ids is None or a.ids.tolist() == b.ids.tolist()


def test_the_second_start_decodes_nothing(folder, load, no_decoding):
    first = load()
    no_decoding()
    second = load()
    assert_same(first, second)
    images = second.train.images
    assert isinstance(images, np.memmap) and not images.flags.writeable
    assert len(kept_in(folder)) == 1


def test_names_of_records_are_kept(tfds_set, tmp_path, load, no_decoding):
    import tensorflow_datasets as tfds

    features = {
        "id": tfds.features.Text(),
        "image": tfds.features.Image(shape=(28, 28, 1)),
        "label": tfds.features.ClassLabel(names=["zéro", *map(str, range(1, 10))]),
    }
    tfds_set(tmp_path, features=features)
    first = load()
    no_decoding()
    assert_same(first, load())
    assert first.class_names[0] == "zéro"
    assert sorted(first.test.ids)[3] == "test_00003"


def test_the_second_start_needs_no_tfds(folder, load, tmp_path):
    load()
    verified.sign(folder, partial=False)
    program = (
        "import sys\n"
        "from attn_cnn_jax import config, data\n"
        "c = config.base_config().dataset\n"
        f"c.name, c.data_dir = 'mnist', {str(tmp_path)!r}\n"
        "assert len(data.load(c).train) == 12\n"
        "assert 'tensorflow_datasets' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_other_data_are_decoded_again(folder, load, tfds_set, tmp_path):
    load()
    shutil.copytree(folder, tmp_path / "aside")
    shutil.rmtree(folder)
    tfds_set(tmp_path, splits={"train": 9, "test": 5})
    shutil.copytree(kept_in(tmp_path / "aside")[0], folder / ".decoded_of_others")
    dataset = load()
    assert len(dataset.train) == 9 and len(dataset.test) == 5


def change(path: pathlib.Path, what: str) -> None:
    index = json.loads((path / "index.json").read_text())
    images = path / "train.images.npy"
    match what:
        case "flipped":
            content = bytearray(images.read_bytes())
            content[-1] ^= 1
            images.write_bytes(content)
        case "cut":
            images.write_bytes(images.read_bytes()[:-100])
        case "missing":
            images.unlink()
        case "pickled":
            images.write_bytes(pickle.dumps(subprocess.run))
            index["arrays"]["train.images"] = verified.digest(images)
        case "objects":
            np.save(images, np.array([print], object), allow_pickle=True)
            index["arrays"]["train.images"] = verified.digest(images)
        case "elsewhere":
            shutil.move(images, path.parent.parent / "x.images.npy")
            name = "../../x.images"
            index["arrays"][name] = index["arrays"].pop("train.images")
        case "no_training":
            index["arrays"] = {
                k: v for k, v in index["arrays"].items() if k.startswith("test")
            }
        case "fields":
            index["arrays"]["train.self"] = index["arrays"]["train.labels"]
        case "list":
            index["arrays"] = [1, {}]
        case "deep":
            (path / "index.json").write_text('{"a":' * 30_000)
            return
    (path / "index.json").write_text(json.dumps(index))


CHANGES = ["flipped", "cut", "missing", "pickled", "objects", "elsewhere"]
CHANGES += ["no_training", "fields", "list", "deep"]


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_damaged_is_decoded_again(folder, load, no_decoding, what):
    first = load()
    change(kept_in(folder)[0], what)
    assert_same(first, load())
    no_decoding()
    assert_same(first, load())  # and was kept anew


def test_a_folder_that_cannot_be_written_is_read(folder, load, monkeypatch):
    def refuse(*unused, **also_unused):
        raise PermissionError("it is read-only")

    monkeypatch.setattr(decoded.tempfile, "mkdtemp", refuse)
    assert len(load().train) == 12
    assert kept_in(folder) == []


def test_a_disk_without_room_is_left_as_it_was(folder, load, monkeypatch):
    def fill(*unused, **also_unused):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(decoded.np, "save", fill)
        assert len(load().train) == 12
    assert kept_in(folder) == []


def test_what_a_killed_process_left_is_removed(folder, load):
    left, young = folder / ".decoded_new_1", folder / ".decoded_new_2"
    left.mkdir()
    young.mkdir()
    os.utime(left, (0, 0))
    load()
    assert not left.exists() and young.exists()


def test_processes_that_begin_together_share_one_copy(folder, tmp_path):
    program = (
        "from attn_cnn_jax import config, data\n"
        "c = config.base_config().dataset\n"
        f"c.name, c.data_dir = 'mnist', {str(tmp_path)!r}\n"
        "assert len(data.load(c).train) == 12\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    [kept] = kept_in(folder)
    # Whoever may read the dataset may read these.
    assert stat.S_IMODE(kept.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode)
