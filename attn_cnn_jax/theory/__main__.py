"""Theorem 1 on the command line; every command explains its flags with --help.

python -m attn_cnn_jax.theory fit
"""

import importlib
import sys

from attn_cnn_jax import command_line
from attn_cnn_jax.errors import UserError

COMMANDS = ("convert", "error", "fit", "pictures")


def main() -> None:
    """Run the command that the first argument names."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        command_line.run(lambda: _refuse(name))
    module = importlib.import_module(f"attn_cnn_jax.theory.commands.{name}")
    command_line.run(module.main)


def _refuse(name: str) -> None:
    raise UserError(
        f"{name!r} is no command; choose from {', '.join(COMMANDS)}: "
        f"python -m attn_cnn_jax.theory {COMMANDS[0]}"
    )


if __name__ == "__main__":
    main()
