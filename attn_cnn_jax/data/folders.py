"""The folder of a dataset that TFDS prepared: found by name, checked before TFDS.

TFDS imports whatever class a features.json names, and formats the file names that a
dataset_info.json gives. Both are read here first, and all that is not plain is refused.
"""

import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from attn_cnn_jax.data.verified import read_json
from attn_cnn_jax.errors import UserError, first_line

_NAME = re.compile(r"([a-z]\w*)(?:/(\w[\w.-]*))?(?::(\d+\.\d+\.\d+))?", re.ASCII)
_VERSION = re.compile(r"\d{1,9}\.\d{1,9}\.\d{1,9}", re.ASCII)
_KEY = re.compile(r"\w[\w .-]*")  # of a feature: a part of a file's name
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"  # what "" is, too
_MAX_BYTES = 2**24  # of a JSON file or of the names of the classes
_MAX_SHARDS = 2**16
_MAX_CLASSES = 2**20
_MAX_PIXELS = 2**24


def default_data_dir() -> pathlib.Path:
    """Return where TFDS looks by itself: $TFDS_DATA_DIR or ~/tensorflow_datasets."""
    default = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    return pathlib.Path(default).expanduser()


def find(name: str, data_dir: str, remedy: str) -> pathlib.Path:
    """Return the folder of the dataset `name`: DIR/mnist/3.0.1, the newest version.

    `name` may go on with a config and a version (emnist/letters:3.1.0). `data_dir` is
    `default_data_dir()` where it is "". Raises a `UserError` with the `remedy` where
    the dataset is not there.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"dataset {name!r:.90}: take a name as in mnist, emnist/letters or "
            "mnist:3.0.1."
        )
    if "://" in data_dir:
        raise UserError(f"--data_dir={data_dir} is no local folder; copy the data.")
    dataset, config, version = match.groups()
    root = pathlib.Path(data_dir or default_data_dir()).expanduser()
    place = root / dataset / (config or "")
    found = _versions(place)
    if not found and config is None:
        configs = [path for path in _folders_in(place) if _versions(path)]
        if len(configs) > 1:
            named = ", ".join(f"{dataset}/{path.name}" for path in configs)
            raise UserError(f"{dataset} is of several kinds in {root}: take {named}.")
        found = [path for kind in configs for path in _versions(kind)]
    if version is not None:
        found = [path for path in found if path.name == version]
    if not found:
        raise UserError(
            f"{name} is not prepared in {root}. {remedy}, name the folder with "
            "--data_dir, or train on data that ships: --config=...:digits."
        )
    return max(found, key=lambda path: [int(part) for part in path.name.split(".")])


def _versions(place: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in _folders_in(place) if _VERSION.fullmatch(path.name)]


def _folders_in(place: pathlib.Path) -> list[pathlib.Path]:
    if not place.is_dir():
        return []
    return sorted(path for path in place.iterdir() if path.is_dir())


def refuse_what_is_not_plain(folder: pathlib.Path) -> None:
    """Raise a `UserError` unless TFDS reads `folder` without running anything in it.

    Its features have to be of TFDS's own classes, all stated in full, its records
    array_record files under the usual names in it, and every size has a bound.
    """
    from google.protobuf import json_format
    from tensorflow_datasets.core.proto import dataset_info_pb2, feature_pb2

    for path in folder.iterdir():
        if not (path.is_file() or path.is_dir()):  # a pipe would never end
            raise UserError(f"{path} is neither a file nor a folder; remove it.")
        if path.name.endswith(".txt") and path.stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} is too large for the names of classes.")
    messages: tuple[Any, Any] = (
        vars(dataset_info_pb2)["DatasetInfo"](),
        vars(feature_pb2)["Feature"](),
    )
    for name, message in zip(
        ("dataset_info.json", "features.json"), messages, strict=True
    ):
        try:
            json_format.ParseDict(read_json(folder / name, _MAX_BYTES), message)
        except Exception as error:  # json_format raises whatever it likes
            raise UserError(
                f"{folder / name} cannot be read: {first_line(error)}"
            ) from error
    info, features = messages
    complaint = next(_complaints_of_info(info, folder), None)
    complaint = complaint or next(_complaints_of_features(features), None)
    if complaint is not None:
        raise UserError(f"{folder} cannot be read: {complaint}.")


def _complaints_of_info(info: Any, folder: pathlib.Path) -> Iterator[str]:
    dataset = folder.parts[-3 if info.config_name else -2]
    if info.name != dataset or info.version != folder.name:
        yield f"it says that it is {info.name!r:.90} of version {info.version!r:.90}"
    if info.file_format in ("", "tfrecord"):
        yield (
            "it is stored as TFRecord, which needs TensorFlow; convert it with python "
            f"-m attn_cnn_jax.prepare_data --source={folder} --data_dir=NEW_DIR"
        )
    if info.file_format != "array_record":
        yield f"its records are {info.file_format!r:.90}, not array_record"
    for split in info.splits:
        if not re.fullmatch(r"\w+", split.name):
            yield f"it has a split called {split.name!r:.90}"
        if split.filepath_template not in ("", _TEMPLATE):
            yield f"its files have names like {split.filepath_template!r:.90}"
        if len(split.shard_lengths) > _MAX_SHARDS:
            yield f"its {split.name} has {len(split.shard_lengths):,} files"


def _complaints_of_features(feature: Any) -> Iterator[str]:
    import tensorflow_datasets as tfds

    own = {
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in vars(tfds.features).values()
        if isinstance(kind, type) and issubclass(kind, tfds.features.FeatureConnector)
    }

    def complaints(feature: Any) -> Iterator[str]:
        kind = feature.WhichOneof("content")
        if feature.python_class_name not in own:
            yield f"{feature.python_class_name!r:.90} is no feature of TFDS's own"
        if kind in (None, "json_feature"):  # JSON in JSON could name another class
            yield f"a {feature.python_class_name!r:.90} does not say what it is"
        if kind == "features_dict":
            for key, inner in feature.features_dict.features.items():
                if not _KEY.fullmatch(key):
                    yield f"a feature is called {key!r:.90}"
                yield from complaints(inner)
        if kind == "sequence":
            yield from complaints(feature.sequence.feature)
        if kind == "class_label" and feature.class_label.num_classes > _MAX_CLASSES:
            yield f"it has {feature.class_label.num_classes:,} classes"
        if kind == "image":
            pixels = 1
            for length in feature.image.shape.dimensions:
                pixels *= max(length, 1)  # -1: of any length
            if pixels > _MAX_PIXELS:
                yield f"its images have {pixels:,} values"

    yield from complaints(feature)
    if feature.WhichOneof("content") != "features_dict":
        yield "its features have no names"
