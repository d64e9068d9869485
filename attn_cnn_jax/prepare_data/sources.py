"""Finds out what a local copy of CIFAR is, and reads it."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from types import ModuleType

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data import binary, files, pickles, tfrecords
from attn_cnn_jax.prepare_data.cifar import LABELS, Cifar
from attn_cnn_jax.prepare_data.files import Files

DEPTH = 2  # folders below the given one that are looked into: DIR/cifar10/3.0.2
_ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".tar.xz")
_ACCEPTED = (
    "a CIFAR tar.gz (binary or python version), a folder with its files, or a TFDS "
    "folder of TFRecords"
)


@dataclasses.dataclass(frozen=True)
class Source:
    """A copy that was found: of which data set, what and where, and how it is read."""

    dataset: str
    description: str
    read: Callable[[], Cifar]


def find_source(path: pathlib.Path, dataset: str | None = None) -> Source:
    """The copy of CIFAR at `path`, an archive or a folder, known by what it contains.

    Folders are searched two levels down, the nearest copy first. `dataset` chooses
    where both CIFAR-10 and CIFAR-100 are there. `UserError` where there is none.
    """
    if not path.exists():
        raise UserError(f"--source: {path} does not exist. It has to be {_ACCEPTED}.")
    levels = files.folders(path, DEPTH) if path.is_dir() else iter([[path]])
    for level in levels:
        found = [source for place in level for source in _sources_at(place)]
        datasets = sorted({source.dataset for source in found})
        if dataset is None and len(datasets) > 1:
            raise UserError(
                f"{path} holds {' and '.join(datasets)}: say which with --dataset."
            )
        if chosen := [s for s in found if dataset in (None, s.dataset)]:
            return chosen[0]
        if found and path.is_file():
            raise UserError(f"{path} holds {datasets[0]}, not {dataset}.")
    raise UserError(f"{path} holds no {dataset or 'CIFAR'}. It has to be {_ACCEPTED}.")


def _sources_at(place: pathlib.Path) -> list[Source]:
    """The copies in a folder itself (not below it), or in an archive."""
    if place.is_file():
        found = files.of_archive(place, _wanted())
        return list(_layouts(found, f"the archive {place}"))
    try:
        found = files.of_folder(place)
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error.strerror}.") from error
    sources = list(_layouts(found, f"the folder {place}"))
    if tfrecords.INFO in found.readers and (name := tfrecords.dataset_of(place)):
        read = functools.partial(tfrecords.read, place, name)
        sources.append(Source(name, f"the TFDS folder {place}", read))
    if not sources:
        for name in sorted(found.readers):
            if name.startswith("cifar-10") and name.endswith(_ARCHIVE_SUFFIXES):
                sources += _sources_at(place / name)
    return sources


def _layouts(found: Files, where: str) -> Iterator[Source]:
    for module, kind in ((binary, "binary version"), (pickles, "python version")):
        for name in LABELS:
            # One file could be called `train` by chance; two of them are a copy.
            if len(_names(module, name) & set(found.readers)) > 1:
                read = functools.partial(module.read, found, name)
                yield Source(name, f"the {kind} of {name} in {where}", read)


def _names(module: ModuleType, dataset: str) -> set[str]:
    """The files that a layout consists of."""
    names = module.NAMES[dataset]
    labels = {names} if isinstance(names, str) else set(names.values())
    return labels.union(*module.RECORDS[dataset].values())


def _wanted() -> set[str]:
    return set().union(*(_names(m, d) for m in (binary, pickles) for d in LABELS))
