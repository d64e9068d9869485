"""Prepare CIFAR for training, from a copy you have or by download.

python -m attn_cnn_jax.prepare_data --source=cifar-10-binary.tar.gz
python -m attn_cnn_jax.prepare_data --source=DIR --data_dir=DIR
python -m attn_cnn_jax.prepare_data --download
"""

import pathlib
import shlex
import sys

from absl import flags

from attn_cnn_jax import command_line
from attn_cnn_jax.data import default_data_dir
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data import copies, download, verify, write
from attn_cnn_jax.prepare_data.cifar import LABELS

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the command's flags; not on import, for other commands have the same."""
    command_line.define_path("source", None, "a CIFAR archive or folder, of any layout")
    flags.DEFINE_bool("download", False, "download the official archive")
    flags.DEFINE_string("url", None, "with --download: a mirror of the same archive")
    flags.DEFINE_enum("dataset", None, list(LABELS), "which CIFAR, if not clear")
    command_line.define_path(
        "data_dir", None, "where to write; default: where TFDS looks"
    )
    flags.DEFINE_bool("allow_partial", False, "accept a copy with fewer records")


def main() -> None:
    """Prepare what the flags ask for, and say how to train with it."""
    if (FLAGS.source is None) == (not FLAGS.download):
        raise UserError("give --source=PATH of a copy that you have, or --download.")
    if FLAGS.url is not None and not FLAGS.download:
        raise UserError("--url needs --download.")
    data_dir = default_data_dir()
    if FLAGS.data_dir is not None:
        data_dir = pathlib.Path(FLAGS.data_dir)
    prepared = FLAGS.dataset or "cifar10"
    if FLAGS.download:
        if not _is_prepared(prepared, data_dir):
            _prepare(_download(prepared, data_dir), data_dir)
    else:
        place = pathlib.Path(FLAGS.source)
        copy = copies.find_copy(place, FLAGS.dataset)
        prepared = copy.dataset
        if not _is_prepared(prepared, data_dir):
            _prepare(copy, data_dir)
    _say_how_to_train(prepared, data_dir)


def _is_prepared(dataset: str, data_dir: pathlib.Path) -> bool:
    there = verify.is_prepared(dataset, data_dir, allow_partial=FLAGS.allow_partial)
    if there:
        folder = verify.prepared_dir(dataset, data_dir)
        print(f"{dataset} is already prepared and undamaged in {folder}.")
    return there


def _download(dataset: str, data_dir: pathlib.Path) -> copies.Copy:
    url, size, sha256 = download.official_archive(dataset)
    archive = data_dir / "downloads" / url.rpartition("/")[2]
    print(f"Downloading {FLAGS.url or url} ({size / 1e6:.0f} MB) to {archive}.")
    download.fetch(FLAGS.url or url, archive, size=size, sha256=sha256)
    print(f"{archive} has the recorded digest; once all is prepared it may be deleted.")
    return copies.find_copy(archive, dataset)


def _prepare(copy: copies.Copy, data_dir: pathlib.Path) -> None:
    print(f"Reading {copy.description}.")
    cifar = copy.read()
    cifar.check(copy.description, allow_partial=FLAGS.allow_partial)
    if cifar.is_official() is False:
        print(
            f"warning: these are not the pixels, labels and order of the official "
            f"{cifar.name}; published accuracies do not apply.",
            file=sys.stderr,
        )
    counts = write.prepare(cifar, data_dir, allow_partial=FLAGS.allow_partial)
    for split, kinds in counts.items():
        for kind, of_class in kinds.items():
            print(
                f"{split}: {of_class.sum()} records read back; of each {kind} "
                f"{of_class.min()} to {of_class.max()}."
            )
    folder = verify.prepared_dir(cifar.name, data_dir)
    print(f"{cifar.name} is prepared and verified in {folder}.")


def _say_how_to_train(dataset: str, data_dir: pathlib.Path) -> None:
    command = "python -m attn_cnn_jax.main --config=configs/laptop.py"
    if dataset != "cifar10":
        command += f":{dataset}"
    if data_dir.absolute() != default_data_dir().absolute():
        command += f" --data_dir={shlex.quote(str(data_dir))}"
    print(f"Train with it: {command}")


if __name__ == "__main__":
    define_flags()
    command_line.run(main)
