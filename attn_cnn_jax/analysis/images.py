"""The images that a figure shows: of the test set, of CIFAR by name, or one's own.

choose_images(run.dataset, ["16", "0-9", "test_00016", "photo.jpg"])
choose_images(run.dataset, ["cat_s_000019", "test_batch:16"], "cifar-10-batches-py")
"""

import dataclasses
import itertools
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from attn_cnn_jax.data import Dataset
from attn_cnn_jax.errors import UserError, first_line
from attn_cnn_jax.prepare_data import archives, binary, pickles

_MAX_PIXELS = 64 * 2**20
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # none runs a program
_RECORDS = tuple(
    name
    for splits in pickles.RECORDS.values()
    for names in splits.values()
    for name in names
)


@dataclasses.dataclass(frozen=True)
class ChosenImages:
    """Images as a model sees them before normalisation, and their names.

    `indices` are those in the test set (from its length on for other images): what a
    network draws at evaluation depends on them. `stems` are what the files of their
    figures are called: "test_00016", the record's name or else the index, and "cat" of
    cat.jpg, each once. `notes` are lines for the user.
    """

    images: np.ndarray  # uint8 [B, H, W, C]
    names: tuple[str, ...]
    indices: tuple[int, ...]
    stems: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Chosen:
    image: np.ndarray
    name: str
    stem: str
    index: int | None = None
    note: str = ""


def choose_images(
    dataset: Dataset, wanted: Sequence[str], batches: str | pathlib.Path | None = None
) -> ChosenImages:
    """Return the images that `wanted` names, in that order.

    Each is an index of the test set ("16") or a range of them ("0-49", both included);
    the name of its record ("test_00016" of CIFAR, the number being the official place);
    the path of an image file, cut to the model's proportions and resized; or, where
    `batches` is CIFAR's python version (folder or tar.gz), a file name of CIFAR
    ("cat_s_000019") or a place in a batch ("test_batch:16", the official order; TFDS,
    and so the test set, has its own). Raises a `UserError` that says what is wrong.
    """
    opened: list[archives.Files] = []

    def open_batches(text: str) -> archives.Files:
        opened.extend([] if opened else [_open(batches, text)])
        return opened[0]

    chosen = [
        image for text in wanted for image in _choose(dataset, text, open_batches)
    ]
    if not chosen:
        raise UserError("no image was chosen.")
    first = len(dataset.test)
    return ChosenImages(
        images=np.stack([one.image for one in chosen]),
        names=tuple(one.name for one in chosen),
        indices=tuple(
            first + i if one.index is None else one.index
            for i, one in enumerate(chosen)
        ),
        stems=_distinct([one.stem for one in chosen]),
        notes=tuple(one.note for one in chosen if one.note),
    )


def _distinct(stems: Sequence[str]) -> tuple[str, ...]:
    """Return names of files without odd characters, with a number where one repeats."""
    found: dict[str, None] = {}
    for stem in stems:
        plain = re.sub(r"[^\w-]+", "_", stem, flags=re.ASCII)[:80] or "image"
        names = (f"{plain}_{number}" for number in itertools.count(2))
        found[next(n for n in itertools.chain([plain], names) if n not in found)] = None
    return tuple(found)


def _choose(
    dataset: Dataset, text: str, open_batches: Callable[[str], archives.Files]
) -> Iterator[_Chosen]:
    if match := re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text, re.ASCII):
        yield from _of_test_set(dataset, int(match[1]), int(match[2] or match[1]))
    elif (row := _row_of_record(dataset, text)) is not None:
        yield from _of_test_set(dataset, row, row)
    elif pathlib.Path(os.path.expanduser(text)).is_file():
        yield _of_file(pathlib.Path(os.path.expanduser(text)), dataset.image_shape)
    else:
        yield _of_batches(dataset, text, open_batches(text))


def _row_of_record(dataset: Dataset, text: str) -> int | None:
    """Return the place in the test set of the record of that name."""
    if dataset.test.ids is None:
        return None
    rows = np.flatnonzero(dataset.test.ids == text)
    return int(rows[0]) if rows.size else None


def _of_test_set(dataset: Dataset, first: int, last: int) -> Iterator[_Chosen]:
    if not first <= last < len(dataset.test):
        wanted = f"{first}" if first == last else f"{first}-{last}"
        raise UserError(
            f"there are no test images {wanted}: they count from 0 to "
            f"{len(dataset.test) - 1}."
        )
    for index in range(first, last + 1):
        about = dataset.class_names[dataset.test.labels[index]]
        if dataset.test.ids is not None:
            about = f"{about}, {dataset.test.ids[index]}"
        name = f"test image {index} ({about})"
        yield _Chosen(dataset.test.images[index], name, _stem(dataset, index), index)


def _stem(dataset: Dataset, index: int) -> str:
    """Return the name of the record of a test image, or its index where it has none."""
    ids = dataset.test.ids
    return f"test_{index:05}" if ids is None else str(ids[index])


def _of_file(path: pathlib.Path, shape: tuple[int, int, int]) -> _Chosen:
    """Return an image file upright, opaque, cut in the middle, resized to `shape`."""
    height, width, channels = shape
    if channels not in (1, 3):
        raise UserError(
            f"{path}: this model takes {channels} channels, which no image file has."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a size that is checked below
            with Image.open(path, formats=_FORMATS) as file:
                if file.width * file.height > _MAX_PIXELS:
                    raise UserError(f"{path} has more than 64 million pixels.")
                if file.mode.startswith(("I", "F")):
                    raise UserError(f"{path} has more than 8 bits a channel: save 8.")
                upright = ImageOps.exif_transpose(file).convert("RGBA")
    except UserError:
        raise
    except Exception as error:  # a damaged file makes Pillow raise whatever it likes
        raise UserError(
            f"{path} cannot be read as an image ({', '.join(_FORMATS)}): "
            f"{first_line(error)}."
        ) from error
    white = Image.new("RGBA", upright.size, "white")
    opaque = Image.alpha_composite(white, upright).convert(
        "L" if channels == 1 else "RGB"
    )
    resized = ImageOps.fit(opaque, (width, height), Image.Resampling.LANCZOS)
    note = ""
    if opaque.size != resized.size:
        note = (
            f"{path.name}, {opaque.width} x {opaque.height} pixels, was cut in the "
            f"middle to the model's proportions and resized to {width} x {height}."
        )
    image = np.asarray(resized).reshape(shape)
    return _Chosen(image, path.name, path.stem, note=note)


def _open(batches: str | pathlib.Path | None, text: str) -> archives.Files:
    if batches is None:
        raise UserError(
            f"{text} is neither an index or a record (test_00016) of the test set nor "
            "an image file; a file name of CIFAR needs its python version "
            "(cifar-10-batches-py or its tar.gz), for TFDS does not keep the names."
        )
    place = pathlib.Path(os.path.expanduser(batches))
    if not place.exists():
        raise UserError(f"{place} does not exist.")
    if place.is_dir():
        return archives.of_folder(place)
    return archives.of_archive(place, _RECORDS)


def _of_batches(dataset: Dataset, text: str, found: archives.Files) -> _Chosen:
    """Return an image of CIFAR's batches, by its file name or by batch and place."""
    record, _, number = text.rpartition(":")
    if record in _RECORDS and re.fullmatch(r"\d{1,9}", number, re.ASCII):
        batch = pickles.load(found, record)
        names = _file_names(batch, record, found)
        if int(number) >= len(names):
            raise UserError(f"{record} in {found.where} has {len(names)} images.")
        return _row(dataset, batch["data"], names, int(number))
    stem = text.removesuffix(".png")
    present = [name for name in _RECORDS if name in found.readers]
    if not present:
        raise UserError(f"{found.where} holds no python batches of CIFAR.")
    for record in present:
        batch = pickles.load(found, record)
        names = _file_names(batch, record, found)
        if stem in names:
            return _row(dataset, batch["data"], names, names.index(stem))
    raise UserError(f"no image in {found.where} is called {text}.")


def _file_names(batch: dict, record: str, found: archives.Files) -> list[str]:
    """Return the file names of a batch, without .png, as many as it has images."""
    names: Any = batch.get("filenames")
    pixels: Any = batch.get("data")
    whole = isinstance(names, list) and isinstance(pixels, np.ndarray)
    if not whole or pixels.shape != (len(names), binary.PIXELS) or pixels.dtype != "u1":
        raise UserError(f"{record} in {found.where} is no whole batch of CIFAR.")
    return [pickles.text(name).removesuffix(".png") for name in names]


def _row(dataset: Dataset, pixels: np.ndarray, names: list[str], row: int) -> _Chosen:
    image = binary.images_of(pixels[row : row + 1])[0]
    if image.shape != dataset.image_shape:
        raise UserError(
            f"images of CIFAR do not fit a model of {list(dataset.image_shape)} images."
        )
    same = np.flatnonzero((dataset.test.images == image).all(axis=(1, 2, 3)))
    if not len(same):
        return _Chosen(image, names[row], names[row])
    index = int(same[0])
    name = f"{names[row]} (test image {index})"
    return _Chosen(image, name, _stem(dataset, index), index)
