"""The start of every command, and the way it tells a user what is wrong."""

import glob
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from absl import app, flags, logging

from attn_cnn_jax import compilation_cache, remote, variants
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models import ModelError


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
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"
    sys.unraisablehook = _print_unraisable
    sys.stdout, sys.stderr = map(_InUsersWords, (sys.stdout, sys.stderr))
    try:
        app.run(_without_arguments(main), flags_parser=_parse_flags)
    except (UserError, ModelError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        _exit(2)
    except KeyboardInterrupt:  # where no training was there to stop in order
        _exit(130)
    except Exception as error:
        is_of_xla = isinstance(error, jax.errors.JaxRuntimeError)
        if is_of_xla and "RESOURCE_EXHAUSTED" in str(error):
            print(
                "error: the device has too little memory for this; lower "
                "config.batch_size or config.eval_batch_size "
                f"({str(error).splitlines()[0]})",
                file=sys.stderr,
            )
            _exit(2)
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exc()
        _exit(1)
    sys.exit(0)


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


class _InUsersWords:
    """A stream that says the URL of a remote folder where it is told of its copy."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(remote.in_users_words(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
    files: list[str] = []
    try:
        argv = flags.FLAGS.read_flags_from_files(list(argv), force_gnu=False)
        if "variant" in flags.FLAGS:
            for path in _values(argv, "variant"):  # a config may name what they add
                variants.load(path)
        files = [value.partition(":")[0] for value in _values(argv, "config")]
        for path in files:  # ml_collections says so only later, and not which file
            if not os.path.isfile(path):
                raise UserError(f"there is no config file {path}.")
        return flags.FLAGS(argv)
    except UserError:
        raise
    except Exception as error:  # a config file is code and may raise anything
        raise UserError(_explain(error, files)) from error


def _values(argv: Sequence[str], flag: str) -> list[str]:
    """Return what stands behind the flag, after a space or an equals sign."""
    values = []
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name in (f"--{flag}", f"-{flag}"):
            values.append(value if equals else following)
    return [value for value in values if value]


def _explain(error: Exception, config_files: Sequence[str]) -> str:
    """Say in a line what is wrong with the flags or in a config file, and where.

    ml_collections puts whole tracebacks into messages; the user has to know the error
    at the end, which was raised last.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    where = _line_of_config(error, config_files)
    if where:
        return f"{where}: {type(error).__name__}: {' '.join(lines)}"
    if "has no attribute 'get_config'" in str(error):
        return f"{', '.join(config_files)} has no function get_config."
    if isinstance(error, AttributeError | KeyError):
        message = " ".join(str(error.args[0]).split()) if error.args else lines[0]
        return f"unknown config field: {message.strip(chr(34))}"
    message = lines[-1] if any("Traceback" in line for line in lines) else lines[0]
    return message.removeprefix("ValueError: ").removeprefix(
        "attn_cnn_jax.errors.UserError: "
    )


def _line_of_config(error: Exception, config_files: Sequence[str]) -> str | None:
    """Return "FILE, line N" of the config file's last line on the way to the error."""
    places = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    own = {os.path.abspath(path) for path in config_files}
    for path, line in reversed(places):
        if os.path.abspath(path) in own:
            return f"{path}, line {line}"
    return None
