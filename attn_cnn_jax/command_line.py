"""How every command of the package starts, and how it tells a user what is wrong."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app, flags, logging

from attn_cnn_jax.errors import UserError


def run(main: Callable[[], int | None]) -> NoReturn:
    """Parse the flags, call `main()` and exit with what it returns (None is 0).

    A `UserError`, from the flags or from `main`, is printed without a traceback and
    the exit status is 2.
    """
    logging.set_verbosity(logging.WARNING)
    try:
        app.run(_without_arguments(main), flags_parser=_parse_flags)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.stdout.flush()
        os._exit(2) if _distributed() else sys.exit(2)
    sys.exit(0)


def _distributed() -> bool:
    """Whether JAX's distributed runtime is up: its exit handler would wait for peers."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _without_arguments(main: Callable[[], int | None]):
    def call(argv: Sequence[str]) -> int | None:
        if len(argv) > 1:
            raise UserError(f"{argv[1]!r} is not a flag; flags start with --.")
        return main()

    return call


def _parse_flags(argv: Sequence[str]) -> list[str]:
    try:
        return flags.FLAGS(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(_explain(error)) from error
    except OSError as error:
        raise UserError(f"the config file cannot be read: {error}") from error


def _explain(error: Exception) -> str:
    """The line of a flag-parsing error that says what is wrong.

    ml_collections puts whole tracebacks into messages; what was raised last, at the
    end, is what the user has to know.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[-1] if any("Traceback" in line for line in lines) else lines[0]
    if isinstance(error, AttributeError | KeyError):
        return f"unknown config field: {message}"
    return message.removeprefix("ValueError: ").removeprefix(
        "attn_cnn_jax.errors.UserError: "
    )
