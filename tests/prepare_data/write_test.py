"""What is prepared is what was read, and nothing half done ever looks prepared."""

import fcntl
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from attn_cnn_jax.data import default_data_dir, verified
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data import verify, write
from attn_cnn_jax.prepare_data.cifar import LABELS, Split


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_a_plain_builder_reads_it(dataset, copies, tmp_path):
    cifar = copies.tiny(dataset)
    counts = write.prepare(cifar, tmp_path, allow_partial=True)
    builder = tfds.builder(dataset, data_dir=tmp_path)
    assert builder.is_prepared()
    for name, split in cifar.splits.items():
        records = list(builder.as_data_source(split=name))
        places = {f"{name}_{i:05d}": i for i in range(len(split.images))}
        assert sorted(r["id"].decode() for r in records) == list(places)
        for record in records:
            place = places[record["id"].decode()]
            np.testing.assert_array_equal(record["image"], split.images[place])
            for kind, labels in split.labels.items():
                assert record[kind] == labels[place]
        for kind, classes in LABELS[dataset].items():
            expected = np.bincount(split.labels[kind], minlength=classes)
            np.testing.assert_array_equal(counts[name][kind], expected)
    for kind, names in cifar.label_names.items():
        assert builder.info.features[kind].names == names


def _is_prepared(path, allow_partial=True):
    return verify.is_prepared("cifar10", path, allow_partial=allow_partial)


def test_a_second_run_recognises_it(copies, tmp_path):
    assert not _is_prepared(tmp_path)
    write.prepare(copies.tiny("cifar10"), tmp_path, allow_partial=True)
    assert _is_prepared(tmp_path)
    with pytest.raises(UserError, match="train has 100 records, not 50000"):
        _is_prepared(tmp_path, allow_partial=False)


def test_what_tfds_made_is_read_through(copies, tmp_path):
    write.prepare(copies.tiny("cifar10"), tmp_path, allow_partial=True)
    folder = verify.prepared_dir("cifar10", tmp_path)
    (folder / verified.FILE).unlink()
    assert _is_prepared(tmp_path)
    shard = next(folder.glob("*train*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    shard.write_bytes(data)
    with pytest.raises(UserError, match="cannot be read.*Remove it|cannot be used"):
        _is_prepared(tmp_path)


@pytest.mark.parametrize("damage", ["flip", "missing", "info"])
def test_later_damage_is_noticed(damage, copies, tmp_path):
    write.prepare(copies.tiny("cifar10"), tmp_path, allow_partial=True)
    folder = verify.prepared_dir("cifar10", tmp_path)
    shard = next(folder.glob("*test*"))
    if damage == "flip":
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    elif damage == "missing":
        shard.unlink()
    else:
        (folder / "dataset_info.json").write_text("{")
        (folder / verified.FILE).unlink()
    with pytest.raises(UserError, match="is there but cannot be used"):
        _is_prepared(tmp_path)


def test_tfrecords_in_its_place_are_left_alone(copies, tmp_path):
    folder = copies.write_tfrecords(copies.tiny("cifar10"), tmp_path)
    with pytest.raises(UserError, match=f"--source={folder} and another --data_dir"):
        _is_prepared(tmp_path)
    assert len(list(folder.glob("*.tfrecord-*"))) == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("pixel", "record 5 of train reads differently"),
        ("label", "record 5 of train reads differently"),
        ("lost", "unexpected id 'train_00099'"),
        ("twice", "unexpected id 'train_00006'"),
    ],
)
def test_what_reads_back_differently_is_not_installed(
    fault, message, copies, tmp_path, monkeypatch
):
    def doctored(name, split, examples=write._examples):
        labels = {kind: values.copy() for kind, values in split.labels.items()}
        images = split.images.copy()
        if fault == "pixel":
            images[5, 31, 31, 2] ^= 1
        elif fault == "label":
            labels["label"][5] = (labels["label"][5] + 1) % 10
        for index, example in examples(name, Split(images, labels)):
            if fault == "twice" and index == 5:
                _, example = list(examples(name, split))[6]
            if fault != "lost" or index != 5:
                yield index, example

    monkeypatch.setattr(write, "_examples", doctored)
    with pytest.raises(UserError, match=message):
        write.prepare(copies.tiny("cifar10"), tmp_path, allow_partial=True)
    assert not _is_prepared(tmp_path)
    assert not list((tmp_path / "cifar10").glob("*"))[1:]  # but the lock file


def test_leftovers_of_killed_runs_are_removed_and_others_stay(copies, tmp_path):
    leftover = tmp_path / "cifar10" / f"{write.STAGING}abc" / "cifar10"
    leftover.mkdir(parents=True)
    other = tmp_path / "cifar10" / "incomplete.XYZ_3.0.2"  # a run of TFDS itself
    other.mkdir()
    write.prepare(copies.tiny("cifar10"), tmp_path, allow_partial=True)
    assert not leftover.parent.exists()
    assert other.exists()


def test_two_runs_at_once_do_not_mix(copies, tmp_path):
    (tmp_path / "cifar10").mkdir()
    with (tmp_path / "cifar10" / ".prepare_data.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # in the way of a writer alone
        with pytest.raises(UserError, match="another run is preparing"):
            write.prepare(copies.tiny("cifar10"), tmp_path, allow_partial=True)


def test_a_place_that_cannot_be_written_is_named(copies, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/cifar10/3.0.2 cannot be written"):
        write.prepare(copies.tiny("cifar10"), tmp_path / "file", allow_partial=True)


def test_a_full_disk_is_noticed_before_writing(copies, tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10**9, 10**9, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="1 MB are needed there and 0 free"):
        write.prepare(copies.tiny("cifar10"), tmp_path, allow_partial=True)
    assert not _is_prepared(tmp_path)


@pytest.mark.parametrize("error", [OSError(28, "No space left"), RuntimeError("full")])
def test_a_disk_that_fills_up_leaves_nothing(error, copies, tmp_path, monkeypatch):
    def fails(self, **kwargs):
        raise error

    monkeypatch.setattr(tfds.core.GeneratorBasedBuilder, "download_and_prepare", fails)
    with pytest.raises(UserError, match="cannot be written: .*(No space|full)"):
        write.prepare(copies.tiny("cifar10"), tmp_path, allow_partial=True)
    assert not list((tmp_path / "cifar10").glob("incomplete.*"))


def test_the_default_is_where_tfds_looks(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert default_data_dir() == tmp_path
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "tensorflow_datasets"
