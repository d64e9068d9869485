"""Write a data set as TFDS does, read every record back, and only then install it.

TensorFlow is not needed: the official builder's identity (name, version, features) is
kept, its reading of the archive is replaced, and images go in as PIL images, which TFDS
encodes to PNG without TensorFlow.
"""

import contextlib
import fcntl
import io
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core import registered
from tqdm import tqdm

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data import verify
from attn_cnn_jax.prepare_data.cifar import Cifar, Split

STAGING = "incomplete.prepare_data."  # what a killed run leaves starts like this
BYTES_PER_RECORD = 6_000  # a PNG, twice: TFDS sorts the records through a second file


def prepare(
    cifar: Cifar, data_dir: pathlib.Path, *, allow_partial: bool
) -> verify.Counts:
    """Write `cifar`, verify what was written against it, and install it in one rename.

    Until that rename nothing under `data_dir` looks prepared. Returns the records of
    each class. Raises a `UserError` where the directory cannot be written, the disk is
    full, or what was read back differs from `cifar`.
    """
    target = verify.prepared_dir(cifar.name, data_dir)
    try:
        with _staging(target.parent) as staging:
            _check_space(staging, cifar)
            _write(cifar, staging)
            written = verify.prepared_dir(cifar.name, staging)
            counts = verify.read_back(
                cifar.name, written, allow_partial=allow_partial, against=cifar
            )
            verify.sign(written)
            written.rename(target)
    # array_record reports a full disk as a RuntimeError or a ValueError.
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{target} cannot be written: {error}. Make room there or choose another "
            "--data_dir, then run the command again."
        ) from error
    return counts


@contextlib.contextmanager
def _staging(parent: pathlib.Path) -> Iterator[pathlib.Path]:
    """Make a folder of this run alone, after removing what killed runs left."""
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / ".prepare_data.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"another run is preparing {parent}: wait until it has ended."
            ) from error
        except OSError:
            pass  # a file system without locks: two runs at once are the user's care
        for leftover in parent.glob(f"{STAGING}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        staging = pathlib.Path(tempfile.mkdtemp(prefix=STAGING, dir=parent))
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _check_space(folder: pathlib.Path, cifar: Cifar) -> None:
    records = sum(len(split.images) for split in cifar.splits.values())
    need, free = records * BYTES_PER_RECORD, shutil.disk_usage(folder).free
    if free < need:
        raise OSError(f"{need / 1e6:.0f} MB are needed there and {free / 1e6:.0f} free")


def _write(cifar: Cifar, data_dir: pathlib.Path) -> None:
    tfds.disable_progress_bar()  # its bars are many; ours is one
    with registered.skip_registration():
        builder = _builder_class(cifar)(data_dir=data_dir, file_format="array_record")
        with contextlib.redirect_stdout(io.StringIO()):  # it names the staging folder
            builder.download_and_prepare()


def _builder_class(cifar: Cifar) -> type[tfds.core.GeneratorBasedBuilder]:
    """Return the official builder, with the arrays of `cifar` for its archive.

    The name of the class is the name of the data set; ids, order and keys (by which
    TFDS shuffles the records) are those of the official builder.
    """

    def split_generators(self, dl_manager: tfds.download.DownloadManager):
        del dl_manager  # nothing is downloaded
        for kind, names in cifar.label_names.items():
            self.info.features[kind].names = names
        return {name: _examples(name, split) for name, split in cifar.splits.items()}

    base = verify.builder_class(cifar.name)
    return type(base.__name__, (base,), {"_split_generators": split_generators})


def _examples(name: str, split: Split) -> Iterator[tuple[int, dict]]:
    images = tqdm(split.images, f"write {name}", unit=" images", disable=None)
    for index, image in enumerate(images):
        labels = {kind: int(values[index]) for kind, values in split.labels.items()}
        identity = verify.record_id(name, index)
        yield index, {"id": identity, "image": Image.fromarray(image), **labels}
