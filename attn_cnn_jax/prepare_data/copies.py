"""Recognise a local copy of CIFAR by its files, and read it."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from types import ModuleType

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data import archives, binary, pickles, tfrecords
from attn_cnn_jax.prepare_data.archives import Files
from attn_cnn_jax.prepare_data.cifar import LABELS, Cifar

DEPTH = 2  # folders below the given one that are looked into: DIR/cifar10/3.0.2
_ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".tar.xz")
_ACCEPTED = (
    "a CIFAR tar.gz (binary or python version), a folder with its files, or a TFDS "
    "folder of TFRecords"
)


@dataclasses.dataclass(frozen=True)
class Copy:
    """A copy of the data set `dataset`: what and where it is, and how it is read."""

    dataset: str
    description: str
    read: Callable[[], Cifar]


def find_copy(path: pathlib.Path, dataset: str | None = None) -> Copy:
    """Return the copy of CIFAR at `path`, an archive or a folder, by its content.

    Folders are searched two levels down, the nearest copy first. `dataset` chooses
    where both CIFAR-10 and CIFAR-100 are there. Raises a `UserError` where neither is.
    """
    if not path.exists():
        raise UserError(f"--source: {path} does not exist. It has to be {_ACCEPTED}.")
    levels = archives.folders(path, DEPTH) if path.is_dir() else iter([[path]])
    for level in levels:
        found = [copy for place in level for copy in _copies_at(place)]
        datasets = sorted({copy.dataset for copy in found})
        if dataset is None and len(datasets) > 1:
            raise UserError(
                f"{path} holds {' and '.join(datasets)}: say which with --dataset."
            )
        if chosen := [copy for copy in found if dataset in (None, copy.dataset)]:
            return chosen[0]
        if found and path.is_file():
            raise UserError(f"{path} holds {datasets[0]}, not {dataset}.")
    raise UserError(f"{path} holds no {dataset or 'CIFAR'}. It has to be {_ACCEPTED}.")


def _copies_at(place: pathlib.Path) -> list[Copy]:
    """Return the copies in a folder itself (not below it), or in an archive."""
    if place.is_file():
        found = archives.of_archive(place, _wanted())
        return list(_layouts(found, f"the archive {place}"))
    try:
        found = archives.of_folder(place)
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error.strerror}.") from error
    copies = list(_layouts(found, f"the folder {place}"))
    if tfrecords.INFO in found.readers and (name := tfrecords.dataset_of(place)):
        read = functools.partial(tfrecords.read, place, name)
        copies.append(Copy(name, f"the TFDS folder {place}", read))
    if not copies:
        for name in sorted(found.readers):
            if name.startswith("cifar-10") and name.endswith(_ARCHIVE_SUFFIXES):
                copies += _copies_at(place / name)
    return copies


def _layouts(found: Files, where: str) -> Iterator[Copy]:
    for module, kind in ((binary, "binary version"), (pickles, "python version")):
        for name in LABELS:
            # One file could be called `train` by chance; two of them are a copy.
            if len(_names(module, name) & set(found.readers)) > 1:
                read = functools.partial(module.read, found, name)
                yield Copy(name, f"the {kind} of {name} in {where}", read)


def _names(module: ModuleType, dataset: str) -> set[str]:
    """Return the names of the files of a layout."""
    names = module.NAMES[dataset]
    labels = {names} if isinstance(names, str) else set(names.values())
    return labels.union(*module.RECORDS[dataset].values())


def _wanted() -> set[str]:
    return set().union(*(_names(m, d) for m in (binary, pickles) for d in LABELS))
