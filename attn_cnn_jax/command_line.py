"""The start of every command, and the way it tells a user what is wrong."""

import contextlib
import difflib
import glob
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from attn_cnn_jax import compilation_cache, remote, variants
from attn_cnn_jax import config as config_lib
from attn_cnn_jax.errors import UserError, one_line
from attn_cnn_jax.models import ModelError

_LONGEST_MESSAGE = 2000
_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")
flags.disclaim_key_flags()  # those defined here are of the command: --help shows them
_ARGV: list[str] = []  # those of this process, those in files of --flagfile too


def define_config_flag() -> flags.FlagHolder:
    """Give a command the flag --config and one for each field, --config.batch_size."""
    fields = (
        f"--config.{field}: {meaning}" for field, meaning in config_lib.MEANINGS.items()
    )
    text = "\n".join(
        [
            "Config file or the name of a row (attn-cnn list), with options after a "
            "colon: quadratic_isotropic:digits,short. Each field is a flag, if its "
            "config has it:",
            *fields,
        ]
    )
    # Given arguments, ml_collections does not read files of --flagfile on importing.
    holder = config_flags.DEFINE_config_file("config", None, text, sys_argv=_ARGV)
    flags.FLAGS["config"].parser = _ConfigParser()
    return holder


def config_as_written() -> ConfigDict:
    """Return the config that --config names, before the flags of its fields."""
    parser: Any = flags.FLAGS["config"].parser
    return parser.as_written


def define_path(name: str, default: str | None, text: str) -> flags.FlagHolder:
    """Give a command a flag that names a file or folder; its ~ is the user's home."""
    return _define(_PathParser(), name, default, text)


def define_folder(name: str, default: str | None, text: str) -> flags.FlagHolder:
    """Give a command a flag as `define_path` does, which may name a URL too."""
    return _define(_FolderParser(), name, default, text)


def define_variant_flag() -> None:
    """Give a command that reads runs the flag --variant."""
    flags.DEFINE_multi_string(
        "variant",
        [],
        "Python file of an attention or a dataset of your own, run before the config; "
        "may be given more than once.",
    )


def checkpoint_named(text: str) -> str | int:
    """Return the checkpoint that a flag names: a step as a number, else the text."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else text


def folders(patterns: Sequence[str]) -> list[str]:
    """Return the folders that globs name, each once, sorted within a glob.

    Raises a `UserError` where one names nothing.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        if remote.is_remote(pattern):
            paths = [remote.local(url) for url in remote.matches(pattern)]
        else:
            paths = sorted(glob.glob(os.path.expanduser(pattern)))
        if not paths:
            raise UserError(f"no folder matches {pattern}.")
        found.update(dict.fromkeys(path for path in paths if os.path.isdir(path)))
    return list(found)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Parse the flags, call `main()` and exit with what it returns (None is 0).

    A `UserError` or `ModelError`, from the flags or from `main`, and what the system
    refuses (an `OSError`) is printed without a traceback and the exit status is 2.
    """
    # Of what TFDS and Orbax tell, pages in part, our own messages say what matters.
    logging.set_verbosity(logging.FATAL)
    warnings.formatwarning = lambda message, *_: (
        f"warning: {one_line(message, _LONGEST_MESSAGE)}\n"
    )
    sys.unraisablehook = _print_unraisable
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that are no text
    sys.stdout = _Harmless(_InUsersWords(sys.stdout))
    sys.stderr = _InUsersWords(sys.stderr)
    try:
        app.run(_without_arguments(main), flags_parser=_parse_flags)
    except (UserError, ModelError, OSError) as error:
        _print_error(error)
        _exit(2)
    except MemoryError as error:
        _print_error(f"there is too little memory for this ({error})")
        _exit(2)
    except KeyboardInterrupt:  # where no training was there to stop in order
        _exit(130)
    except Exception as error:
        is_of_xla = isinstance(error, jax.errors.JaxRuntimeError)
        if is_of_xla and "RESOURCE_EXHAUSTED" in str(error):
            _print_error(
                "the device has too little memory for this; lower config.batch_size "
                f"or config.eval_batch_size ({str(error).splitlines()[0]})"
            )
            _exit(2)
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exc()
        _exit(1)
    sys.exit(0)


class _Harmless:
    """A stream that shows what a terminal would obey as Python writes it.

    The name of a folder may have it. One that is read from right to left is shown so,
    but none can turn the text around it.
    """

    _OBEYED = [*range(10), *range(11, 32), *range(127, 160)]
    _OBEYED += [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    _SHOWN = {code: ascii(chr(code))[1:-1] for code in _OBEYED}

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.translate(self._SHOWN))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _InUsersWords:
    """A stream that says the URL of a remote folder where it is told of its copy."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(remote.in_users_words(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _print_error(error: Exception | str) -> None:
    print(f"error: {one_line(error, _LONGEST_MESSAGE)}", file=sys.stderr)


def _print_unraisable(unraisable: Any) -> None:
    """Print what nobody can catch, but for the threads of a save that has failed.

    That is told in a line; hundreds of them then find the loop of its events closed.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _exit(status: int) -> NoReturn:
    """Exit with an error; JAX's exit handler would wait for peers that have none."""
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _without_arguments(main: Callable[[], int | None]):
    def call(argv: Sequence[str]) -> int | None:
        if len(argv) > 1:
            raise UserError(f"{argv[1]!r} is not a flag; flags start with --.")
        compilation_cache.enable()
        try:
            return main()
        finally:
            remote.write_back()

    return call


def _parse_flags(argv: Sequence[str]) -> list[str]:
    try:
        _ARGV[:] = _with_flag_files(list(argv))
        if "variant" in flags.FLAGS:
            for path in _values("variant"):  # a config may name what they add
                variants.load(path)
        return flags.FLAGS(_ARGV)
    except UserError:
        raise
    except Exception as error:  # parsers of a config's fields raise what they like
        raise UserError(str(error).strip() or type(error).__name__) from error
    except SystemExit:  # --help and its like, which absl counts as failures
        sys.exit(0)


def _with_flag_files(argv: Sequence[str]) -> list[str]:
    """Return the arguments with those in the files of --flagfile in their place."""
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            argv = flags.FLAGS.read_flags_from_files(argv, force_gnu=False)
    except flags.Error as error:
        raise UserError(f"--flagfile: {str(error).rpartition('flagfile: ')[2]}") from (
            error
        )
    except (UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"--flagfile: it is no text of flags: {error}") from error
    if complaints.getvalue():
        file = complaints.getvalue().strip().rpartition(": ")[2]
        raise UserError(f"--flagfile={file} includes itself.")
    return list(argv)


def _values(flag: str) -> list[str]:
    """Return what stands behind the flag, after a space or an equals sign."""
    values = []
    for argument, following in zip(_ARGV, [*_ARGV[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name in (f"--{flag}", f"-{flag}"):
            values.append(value if equals else following)
    return [value for value in values if value]


def _define(
    parser: flags.ArgumentParser, name: str, default: str | None, text: str
) -> flags.FlagHolder:
    serializer = flags.ArgumentSerializer()
    return flags.DEFINE(parser, name, default, text, serializer=serializer)


class _PathParser(flags.ArgumentParser):
    """The parser of `define_path`."""

    def parse(self, argument: str) -> str:
        if _URL.match(argument):
            raise ValueError("URLs are not taken; name a place on this machine.")
        if not argument or "\0" in argument:
            raise ValueError("that is no path.")
        path = os.path.expanduser(argument)
        # Arrays would be written to another folder, or not at all.
        if re.search(r"[\\\ud800-\udfff]", os.path.abspath(path)):
            raise ValueError("take a path of UTF-8 without a backslash.")
        return path


class _FolderParser(_PathParser):
    """The parser of `define_folder`."""

    def parse(self, argument: str) -> str:
        if not _URL.match(argument):
            return super().parse(argument)
        remote.check(argument)
        return argument


class _ConfigParser(flags.ArgumentParser):
    """The parser of --config=FILE.py[:options], the file being run once.

    `as_written` is what it returned, without the flags of fields.
    """

    as_written: ConfigDict

    def parse(self, argument: str) -> ConfigDict:
        path, colon, options = argument.partition(":")
        config = config_lib.read_file(path, options if colon else None)
        for argument in _ARGV:
            if match := re.match(r"--?(?:no)?config\.([^=]*)", argument):
                _refuse_unknown(config, match[1])
        config.lock()
        self.as_written = config.copy_and_resolve_references()
        return config


def _refuse_unknown(config: ConfigDict, field: str) -> None:
    """Raise a `UserError` unless `config` has the dotted field."""
    block: Any = config
    for key in field.split("."):
        names = list(block) if isinstance(block, ConfigDict) else []
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise UserError(f"there is no field config.{field}{hint}")
        block = block[key]
