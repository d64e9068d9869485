"""Batches: each image once, crops in range, and what is said of data that is bad."""

import dataclasses
import hashlib
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from attn_cnn_jax import data
from attn_cnn_jax.config import base_config
from attn_cnn_jax.data.dataset import channel_statistics
from attn_cnn_jax.errors import UserError

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def fields(name: str, **changes) -> ConfigDict:
    dataset = base_config().dataset
    dataset.update(name=name, **changes)
    return dataset


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.load(fields("digits_8x8"))


@pytest.fixture(scope="module")
def enlarged() -> data.Dataset:
    return data.load(fields("digits"))


def source_rows(split: data.Split) -> list[int]:
    """Rows of scikit-learn's table that the images of `split` are."""
    from sklearn.datasets import load_digits

    images = np.round(load_digits().images * (255 / 16)).astype(np.uint8)
    rows = {image.tobytes(): row for row, image in enumerate(images)}
    assert len(rows) == len(images) == 1797  # no two are alike
    return [rows[image.tobytes()] for image in split.images]


def test_digits_split_is_fixed(digits):
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert digest(digits.test.labels) == "9ce5b942abae7d0e"
    assert digest(digits.test.images) == "de85aee14a9506dd"
    again = data.load(fields("digits_8x8"))
    np.testing.assert_array_equal(again.train.images, digits.train.images)


def test_digits_split_holds_every_image_once(digits):
    train, test = source_rows(digits.train), source_rows(digits.test)
    assert sorted(train + test) == list(range(1797))


def test_digits_labels_belong_to_their_images(digits):
    from sklearn.datasets import load_digits

    for split in (digits.train, digits.test):
        wanted = load_digits().target[source_rows(split)]
        np.testing.assert_array_equal(split.labels, wanted)


def test_digits_split_is_stratified(digits):
    everything = np.concatenate([digits.train.labels, digits.test.labels])
    share = np.bincount(everything) * 360 / 1797
    assert np.abs(np.bincount(digits.test.labels) - share).max() < 1


def test_digits_enlarged_are_blocks_of_the_native_pixels(digits, enlarged):
    assert digits.image_shape == (8, 8, 1) and enlarged.image_shape == (32, 32, 3)
    for small, large in ((digits.train, enlarged.train), (digits.test, enlarged.test)):
        assert small.images.dtype == large.images.dtype == np.uint8
        assert small.labels.dtype == large.labels.dtype == np.int32
        np.testing.assert_array_equal(small.labels, large.labels)
        blocks = large.images.reshape(-1, 8, 4, 8, 4, 3)
        wanted = small.images[:, :, None, :, None, :]
        assert (blocks == wanted).all()
    assert digits.num_classes == enlarged.num_classes == 10
    assert digits.train.images.max() == 255


@pytest.mark.parametrize("num_images, batch_size", [(100, 10), (103, 10), (7, 7)])
def test_an_epoch_is_a_permutation_in_full_batches(num_images, batch_size):
    rows = data.epoch_rows(3, 5, num_images, batch_size)
    assert rows.shape == (num_images // batch_size, batch_size)
    assert rows.dtype == np.int32
    assert len(set(rows.ravel().tolist())) == rows.size
    assert rows.min() >= 0 and rows.max() < num_images
    assert rows.ravel().tolist() != sorted(rows.ravel().tolist())


def test_an_epoch_depends_on_seed_and_epoch_alone():
    first = data.epoch_rows(1, 0, 50, 10)
    np.testing.assert_array_equal(first, data.epoch_rows(1, 0, 50, 10))
    others = [data.epoch_rows(*pair, 50, 10) for pair in ((2, 0), (1, 1), (0, 1))]
    for i, rows in enumerate(others):
        assert (rows != first).any()
        assert all((rows != other).any() for other in others[:i])


def test_what_is_left_out_of_an_epoch_changes():
    """103 images in batches of 10: another three are left out every time."""
    left = {
        frozenset(
            set(range(103)) - set(data.epoch_rows(0, e, 103, 10).ravel().tolist())
        )
        for e in range(5)
    }
    assert len(left) == 5 and all(len(rows) == 3 for rows in left)


def test_fewer_images_than_a_batch_are_no_steps():
    assert data.epoch_rows(0, 0, 9, 10).shape == (0, 10)


SIZES = [(10, 3), (9, 3), (1, 1), (5, 8), (1, 100), (360, 100), (101, 100)]


@pytest.mark.parametrize("num_images, batch_size", SIZES)
def test_evaluation_visits_every_row_once(num_images, batch_size):
    rows, weights = data.eval_rows(num_images, batch_size)
    assert rows.shape == weights.shape == (-(-num_images // batch_size), batch_size)
    assert set(np.unique(weights).tolist()) <= {0.0, 1.0}
    assert rows[weights == 1].tolist() == list(range(num_images))
    padding = rows[weights == 0]
    assert padding.tolist() == [row % num_images for row in range(len(padding))]


def numbered_images(batch: int, height: int, width: int) -> jax.Array:
    """Images in which every pixel has a value of its own, none of them 0."""
    count = height * width
    image = np.arange(1, count + 1, dtype=np.uint8).reshape(1, height, width, 1)
    return jnp.asarray(np.tile(image, (batch, 1, 1, 1)))


@pytest.mark.parametrize("padding, flip", [(2, True), (1, False), (0, True)])
def test_augmented_images_are_all_the_crops_there_are(padding, flip):
    images = numbered_images(1500, 5, 4)
    pad = (padding, padding)
    padded = np.pad(np.asarray(images[0]), (pad, pad, (0, 0)))
    crops = {}
    for row in range(2 * padding + 1):
        for column in range(2 * padding + 1):
            crop = padded[row : row + 5, column : column + 4]
            crops[crop.tobytes()] = (row, column, False)
            if flip:
                crops[crop[:, ::-1].tobytes()] = (row, column, True)
    made = np.asarray(
        data.augment(images, jax.random.key(0), crop_padding=padding, flip=flip)
    )
    assert made.shape == images.shape and made.dtype == np.uint8
    seen = Counter(crops[image.tobytes()] for image in made)  # KeyError: not a crop
    assert len(seen) == len(crops)
    expected = len(images) / len(crops)
    assert min(seen.values()) > expected / 3 and max(seen.values()) < expected * 3


def test_no_padding_and_no_flip_leave_the_images_alone():
    images = numbered_images(8, 5, 4)
    made = data.augment(images, jax.random.key(0), crop_padding=0, flip=False)
    np.testing.assert_array_equal(made, images)


def test_augmentation_depends_on_its_key_alone():
    images = numbered_images(16, 6, 6)
    first, again, other = (
        np.asarray(data.augment(images, jax.random.key(k), crop_padding=2, flip=True))
        for k in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def random_images(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_normalize_is_torchvisions_totensor_and_normalize():
    images = random_images((4, 5, 6, 3))
    made = np.asarray(data.normalize(jnp.asarray(images), CIFAR_MEAN, CIFAR_STD))
    wanted = (images / 255.0 - np.array(CIFAR_MEAN)) / np.array(CIFAR_STD)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6)


def test_statistics_are_those_of_the_training_pixels(digits, enlarged):
    for dataset in (digits, enlarged):
        pixels = dataset.train.images / 255.0
        np.testing.assert_allclose(dataset.mean, pixels.mean((0, 1, 2)), rtol=1e-9)
        np.testing.assert_allclose(dataset.std, pixels.std((0, 1, 2)), rtol=1e-9)
    channels = random_images((6, 7, 8, 3)) // np.array([1, 2, 5], np.uint8)
    mean, std = channel_statistics(channels)
    np.testing.assert_allclose(mean, (channels / 255).mean((0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(std, (channels / 255).std((0, 1, 2)), rtol=1e-9)


def test_a_constant_channel_is_not_divided_by_zero():
    mean, std = channel_statistics(np.full((2, 3, 3, 1), 51, np.uint8))
    np.testing.assert_allclose(mean, [0.2])
    assert std == (1.0,) or std[0] > 0
    images = jnp.full((1, 3, 3, 1), 51, jnp.uint8)
    assert np.abs(np.asarray(data.normalize(images, mean, std))).max() < 1e-3


def test_validation_images_are_taken_from_the_training_images(digits):
    held_out = data.load(fields("digits_8x8", validation_fraction=0.2))
    assert held_out.validation is not None and digits.validation is None
    assert (len(held_out.train), len(held_out.validation)) == (1150, 287)
    train, validation = source_rows(held_out.train), source_rows(held_out.validation)
    assert sorted(train + validation) == sorted(source_rows(digits.train))
    assert validation != source_rows(digits.train)[:287]
    np.testing.assert_array_equal(held_out.test.images, digits.test.images)
    again = data.load(fields("digits_8x8", validation_fraction=0.2))
    assert source_rows(again.validation) == validation


@pytest.mark.parametrize("fraction", [0.0001, 0.9999])
def test_a_validation_split_without_images_is_refused(fraction):
    with pytest.raises(UserError, match="validation_fraction"):
        data.load(fields("digits_8x8", validation_fraction=fraction))


def add(monkeypatch, load) -> None:
    """Put a dataset of 8 x 8 digits called "own" into the table."""
    entry = dataclasses.replace(data.DATASETS["digits_8x8"], load=load)
    monkeypatch.setitem(data.DATASETS, "own", entry)


def of_split(**changes):
    """A change of the training split."""
    return lambda d: {"train": dataclasses.replace(d.train, **changes)}


UNSOUND = {
    "no dataset": (None, "its loader returned a value of type NoneType"),
    "classes": (lambda d: {"class_names": ("0", "1")}, "names 2 classes, not 10"),
    "validation": (lambda d: {"validation": d.test}, "held out validation images"),
    "no split": (lambda d: {"test": None}, "test is a value of type NoneType"),
    "mean": (lambda d: {"mean": (0.5, 0.5, 0.5)}, r"mean is \[0.5, 0.5, 0.5\], not 1"),
    "mean of nan": (lambda d: {"mean": (float("nan"),)}, r"mean is \[nan\], not 1"),
    "std": (lambda d: {"std": (0.0,)}, r"std is \[0.0\], not 1 finite numbers above 0"),
    "images": (
        of_split(images=np.zeros((1437, 8, 8, 1))),
        r"train images are float64 \[1437, 8, 8, 1\], not uint8 \[N, 8, 8, 1\]",
    ),
    "shape": (
        of_split(images=np.zeros((1437, 8, 8), np.uint8)),
        r"\[1437, 8, 8\], not",
    ),
    "labels": (
        of_split(labels=np.zeros(1437, np.int64)),
        r"train labels are int64 \[1437\], not int32 \[1437\]",
    ),
    "too few": (of_split(labels=np.zeros(1436, np.int32)), r"\[1436\], not int32"),
    "label": (
        of_split(labels=np.arange(1437, dtype=np.int32)),
        "train image 10 has the label 10 of 10 classes",
    ),
    "negative": (of_split(labels=-np.ones(1437, np.int32)), "image 0 has the label -1"),
    "ids": (of_split(ids=np.array(["a"])), r"train ids are <U1 \[1\], not a name"),
    "empty": (
        of_split(images=np.zeros((0, 8, 8, 1), np.uint8)),
        "has no images",
    ),
}


@pytest.mark.parametrize("wrong", UNSOUND)
def test_an_unsound_dataset_is_named(digits, wrong, monkeypatch):
    change, message = UNSOUND[wrong]
    if change is None:
        unsound = None
    else:
        unsound = object.__new__(data.Dataset)  # a user's, whose types nobody checks
        vars(unsound).update(vars(digits) | change(digits))
    add(monkeypatch, lambda _: unsound)
    with pytest.raises(UserError, match=f"dataset own: .*{message}") as error:
        data.load(fields("own"))
    assert "\n" not in str(error.value)


def test_statistics_of_what_is_no_images_are_refused():
    for shape, dtype in (((2, 8, 8, 1), "float64"), ((2, 8, 8), "uint8")):
        with pytest.raises(UserError, match=f"images are {dtype} .*, not uint8"):
            channel_statistics(np.zeros(shape, dtype))
