"""What TFDS prepared is read as it is, or refused in a line; nothing of it is run."""

import json
import os
import sys
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow_datasets as tfds

from attn_cnn_jax import data
from attn_cnn_jax.data import verified
from attn_cnn_jax.data.prepared import Record, materialise
from attn_cnn_jax.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:.*was never verified")
SETS = [("mnist", (28, 28, 1), 10), ("stl10", (96, 96, 3), 10)]


@pytest.mark.parametrize("name, shape, num_classes", SETS)
def test_a_set_is_found_by_its_features(
    name, shape, num_classes, tfds_set, fields, tmp_path
):
    tfds_set(tmp_path, name, shape, num_classes)
    dataset = data.load(fields(name, tmp_path))
    assert dataset.image_shape == shape and dataset.num_classes == num_classes
    for kind in ("train", "test"):
        split = getattr(dataset, kind)
        assert split.images.dtype == np.uint8 and split.labels.dtype == np.int32
        whole = {tfds_set.pixels(kind, i, shape).tobytes(): i for i in range(12)}
        places = [whole.pop(image.tobytes()) for image in split.images]
        assert not whole and split.ids is None
        assert split.labels.tolist() == [i % num_classes for i in places]
    scaled = dataset.train.images / 255.0
    np.testing.assert_allclose(dataset.mean, scaled.mean((0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(dataset.std, scaled.std((0, 1, 2)), rtol=1e-9)


def test_what_was_never_verified_is_said(tfds_set, fields, tmp_path):
    folder = tfds_set(tmp_path)
    with pytest.warns(UserWarning, match=f"mnist in {folder} was never verified.$"):
        data.load(fields("mnist", tmp_path))
    verified.sign(folder, partial=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.load(fields("mnist", tmp_path))


def test_the_version_and_the_kind_are_chosen(tfds_set, fields, tmp_path):
    for version, count in (("3.0.1", 12), ("3.0.10", 13), ("3.0.9", 14)):
        tfds_set(tmp_path, splits={"train": count, "test": 1}, version=version)

    def found(name):
        return len(data.load(fields(name, tmp_path)).train)

    assert found("mnist") == 13 and found("mnist:3.0.9") == 14
    with pytest.raises(UserError, match="mnist:3.0.8 is not prepared"):
        found("mnist:3.0.8")
    for kind in ("letters", "digits"):
        (tmp_path / "emnist" / kind / "3.1.0").mkdir(parents=True)
    with pytest.raises(UserError, match="take emnist/digits, emnist/letters"):
        found("emnist")
    with pytest.raises(UserError, match="letters/3.1.0/dataset_info.json cannot"):
        found("emnist/letters")


def test_data_that_are_not_prepared_name_the_ways_out(fields, tmp_path):
    with pytest.raises(UserError) as error:
        data.load(fields("cifar10", tmp_path))
    for word in ("cifar10", str(tmp_path), "prepare_data", ":digits", "--data_dir"):
        assert word in str(error.value)
    assert "\n" not in str(error.value)


NAMES = ["no_such_set", "Cifar 10", "cifar10/no_such", "../cifar10", "/etc", "kaggle:x"]
NAMES += ["huggingface:x/y", "mnist/../x", "mnist/a=1", "mnist:3.*.*", "gs://x/mnist"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_none_is_said(name, fields, tmp_path):
    with pytest.raises(UserError, match="is not prepared|take a name") as error:
        data.load(fields(name, tmp_path))
    assert name in str(error.value) and "\n" not in str(error.value)


def test_a_bucket_is_not_asked(fields):
    with pytest.raises(UserError, match="gs://evil is no local folder"):
        data.load(fields("mnist", "gs://evil"))


EVIL = {"pythonClassName": "payload.Text", "text": {}}
LEGACY = {"type": "payload.Text", "content": {}}
OWN = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
SEQUENCE = "tensorflow_datasets.core.features.sequence_feature.Sequence"
HIDDEN = {
    "pythonClassName": OWN,
    "jsonFeature": {"json": json.dumps({"x": LEGACY})},
}
FOREIGN = {
    "on top": EVIL,
    "in old words": LEGACY,
    "in the names of the message": {"python_class_name": "payload.T", "text": {}},
    "a feature": {"x": EVIL},
    "in a sequence": {
        "x": {"pythonClassName": SEQUENCE, "sequence": {"feature": EVIL}}
    },
    "in JSON in JSON": HIDDEN,
    "in JSON in a feature": {"x": HIDDEN},
}


@pytest.mark.parametrize("where", FOREIGN)
def test_no_class_that_a_folder_names_is_imported(
    where, tfds_set, fields, tmp_path, monkeypatch
):
    """TFDS would import it, which `builder_from_directory` shows."""
    (tmp_path / "payload.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    path = tfds_set(tmp_path) / "features.json"
    content = FOREIGN[where]
    if "x" in content:
        whole = json.loads(path.read_text())
        whole["featuresDict"]["features"].update(content)
        content = whole
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="cannot be read: .*(payload|say what|type)"):
        data.load(fields("mnist", tmp_path))
    assert not (tmp_path / "ran").exists()
    with pytest.warns(ResourceWarning), pytest.raises(ValueError, match="payload"):
        tfds.builder_from_directory(path.parent)
    assert (tmp_path / "ran").exists()
    del sys.modules["payload"]


INFO = {
    "another set": ({"name": "cifar10"}, "says that it is 'cifar10'"),
    "another version": ({"version": "3.0.2"}, "of version '3.0.2'"),
    "a template": (
        {"splits": [{"name": "train", "filepathTemplate": "{SPLIT:>9999999999}"}]},
        "files have names like '{SPLIT",
    ),
    "a path": ({"splits": [{"name": "../../x"}]}, "a split called '../../x'"),
    "another format": ({"fileFormat": "parquet"}, "'parquet', not array_record"),
    "TFRecords": ({"fileFormat": "tfrecord"}, "TFRecord.*prepare_data --source"),
    "an unknown field": ({"code": "x"}, 'no field named "code"'),
    "missing records": (
        {"splits": [{"name": "train", "shardLengths": ["9"]}]},
        "has 12 records, not 9",
    ),
    "missing files": (
        {"splits": [{"name": "train", "shardLengths": ["12", "12"]}]},
        "array_record-00000-of-00002 is missing",
    ),
    "no splits": ({"splits": []}, r"has the splits \(none\)"),
}


@pytest.mark.parametrize("change", INFO)
def test_an_altered_info_is_refused(change, tfds_set, fields, tmp_path):
    folder = tfds_set(tmp_path)
    path = folder / "dataset_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **INFO[change][0]}))
    with pytest.raises(UserError, match=INFO[change][1]) as error:
        data.load(fields("mnist", tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("text", ["[" * 30_000, "{", "[]", "1" * 5_000, " " * 2**25])
def test_json_that_is_none_is_refused(name, text, tfds_set, fields, tmp_path):
    (tfds_set(tmp_path) / name).write_text(text)
    with pytest.raises(UserError, match=f"{name} cannot be read") as error:
        data.load(fields("mnist", tmp_path))
    assert "\n" not in str(error.value)


def test_a_pipe_is_not_waited_for(tfds_set, fields, tmp_path):
    os.mkfifo(tfds_set(tmp_path) / "label.labels.txt")
    with pytest.raises(UserError, match="neither a file nor a folder"):
        data.load(fields("mnist", tmp_path))


def test_a_large_image_is_not_decoded(tfds_set, fields, tmp_path):
    folder = tfds_set(tmp_path, shape=(None, None, 1))
    path = folder / "features.json"
    content = json.loads(path.read_text())
    image = content["featuresDict"]["features"]["image"]["image"]
    image["shape"]["dimensions"] = ["5", "6", "1"]  # the files say 5 x 5
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="record 0 .*5 x 5 pixels, not 5 x 6"):
        data.load(fields("mnist", tmp_path))
    image["shape"]["dimensions"] = ["65000", "65000", "1"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="4,225,000,000 values"):
        data.load(fields("mnist", tmp_path))


REFUSED = [
    ({"image": tfds.features.Image(shape=(28, 28, 1))}, "is not image classification"),
    (
        {
            "image": tfds.features.Image(shape=(None, None, 1)),
            "label": tfds.features.ClassLabel(num_classes=10),
        },
        "mnist differ in size",
    ),
]


@pytest.mark.parametrize("features, message", REFUSED)
def test_what_cannot_be_classified_is_refused(
    features, message, tfds_set, fields, tmp_path
):
    tfds_set(tmp_path, features=features)
    with pytest.raises(UserError, match=message):
        data.load(fields("mnist", tmp_path))


def test_the_validation_split_is_the_test_of_a_set_without(tfds_set, fields, tmp_path):
    tfds_set(tmp_path, "one", splits={"train": 12})
    with pytest.raises(UserError, match="one has the splits train;"):
        data.load(fields("one", tmp_path))
    tfds_set(tmp_path, "two", splits={"train": 12, "validation": 7})
    assert len(data.load(fields("two", tmp_path)).test) == 7


SHAPE = (4, 4, 3)


def decoded(row: bytes) -> Record:
    """A record as the bytes of its number say it."""
    if (number := int(row)) < 0:
        raise ValueError("it is broken\nmore")
    return Record(np.full(SHAPE, number % 256, np.uint8), number % 10, f"{number:05d}")


@pytest.mark.parametrize("position", [0, 3, 299])
def test_a_bad_record_is_named(position):
    rows = [str(i).encode() for i in range(300)]
    rows[position] = b"-1"
    wanted = rf"record {position} .*\(it is broken\).*prepare_data"
    with pytest.raises(UserError, match=wanted) as error:
        materialise(rows, decoded, SHAPE, "reading")
    assert "\n" not in str(error.value)


def test_good_records_keep_their_order():
    rows = [str(i).encode() for i in range(300)]
    split = materialise(rows, decoded, SHAPE, "reading")
    assert split.ids is not None and split.ids[298:].tolist() == ["00298", "00299"]
    assert split.images[:, 0, 0, 0].tolist() == [n % 256 for n in range(300)]
    assert split.labels.tolist() == [n % 10 for n in range(300)]


class Endless(Sequence):
    """More records than any machine holds."""

    def __len__(self) -> int:
        return 2**45

    def __getitem__(self, row):
        return b"0"


def test_more_than_the_memory_is_refused():
    with pytest.raises(UserError, match="do not fit in memory"):
        materialise(Endless(), decoded, SHAPE, "reading")
