"""Theorem 1 on the command line; every command explains its flags with --help.

python -m attn_cnn_jax.theory convert --help
python -m attn_cnn_jax.theory error --help
python -m attn_cnn_jax.theory fit --help
python -m attn_cnn_jax.theory pictures --help
"""

import runpy
import sys

from attn_cnn_jax import command_line
from attn_cnn_jax.errors import UserError

COMMANDS = ("convert", "error", "fit", "pictures")


def main() -> None:
    """Run the command that the first argument names."""
    named = len(sys.argv) > 1 and not sys.argv[1].startswith("-")  # else maybe --help
    name = sys.argv.pop(1) if named else ""
    if name not in COMMANDS:
        command_line.run(lambda: _refuse(name))
    module = f"attn_cnn_jax.theory.commands.{name}"
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _refuse(name: str) -> None:
    raise UserError(
        f"{name!r} is no command; choose from {', '.join(COMMANDS)}: "
        f"python -m attn_cnn_jax.theory {COMMANDS[0]}"
    )


if __name__ == "__main__":
    main()
