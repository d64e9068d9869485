"""Small datasets in the folders that TFDS itself writes."""

import contextlib
import io
import pathlib
from collections.abc import Mapping

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core import registered

from attn_cnn_jax.config import base_config


def write_tfds(
    root: pathlib.Path,
    name: str = "mnist",
    shape: tuple = (28, 28, 1),
    num_classes: int = 10,
    splits: Mapping[str, int] | None = None,
    *,
    version: str = "3.0.1",
    file_format: str = "array_record",
    features: Mapping | None = None,
) -> pathlib.Path:
    """Random images, 12 in each split, as TFDS prepares them; returns the folder.

    Image i of a split is `pixels(split, i, shape)`, its label i % num_classes.
    """
    splits = {"train": 12, "test": 12} if splits is None else splits
    whole = features or {
        "image": tfds.features.Image(shape=shape),
        "label": tfds.features.ClassLabel(num_classes=num_classes),
    }

    def info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(whole)
        )

    def examples(self, split: str):
        for i in range(splits[split]):
            pixels_of = pixels(split, i, tuple(n or 5 for n in shape))
            values = {
                "image": Image.fromarray(pixels_of.squeeze()),
                "label": i % num_classes,
                "id": f"{split}_{i:05d}",
            }
            yield i, {key: values[key] for key in whole}

    with registered.skip_registration():
        kind = type(
            name.title(),
            (tfds.core.GeneratorBasedBuilder,),
            {
                "name": name,
                "VERSION": tfds.core.Version(version),
                "_info": info,
                "_split_generators": lambda self, manager: {
                    split: self._generate_examples(split) for split in splits
                },
                "_generate_examples": examples,
            },
        )
        tfds.disable_progress_bar()
        with contextlib.redirect_stdout(io.StringIO()):
            builder = kind(data_dir=root, file_format=file_format)
            builder.download_and_prepare()
    return pathlib.Path(builder.data_dir)


def pixels(split: str, i: int, shape: tuple[int, ...]) -> np.ndarray:
    """The image i of a split."""
    generator = np.random.Generator(np.random.Philox(key=[len(split), i]))
    return generator.integers(0, 256, shape, np.uint8)


@pytest.fixture(scope="session")
def tfds_set():
    """The function `write_tfds`; `tfds_set.pixels` makes the images."""
    write_tfds.pixels = pixels
    return write_tfds


@pytest.fixture
def fields():
    """Builds `config.dataset` of a name in a data_dir."""

    def build(name: str, data_dir: pathlib.Path):
        dataset = base_config().dataset
        dataset.update(name=name, data_dir=str(data_dir))
        return dataset

    return build
