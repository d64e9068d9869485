"""`attn-cnn COMMAND`, or `python -m attn_cnn_jax COMMAND`: all commands by one name.

attn-cnn train --config=quadratic_isotropic:digits
"""

import difflib
import runpy
import sys

COMMANDS = {
    "train": ("main", "Train a row, or continue its run."),
    "evaluate": ("main", "Score a run again."),
    "analyze": ("analyze", "Draw and count what the heads of a run attend to."),
    "prune": ("prune", "Make a run without some of its heads."),
    "sweep": ("sweep", "Train rows with several seeds, and print their tables."),
    "tables": ("results", "Print the papers' tables with your runs."),
    "list": ("results.list_configs", "Print the rows, published and your own numbers."),
    "bench": ("bench", "Measure speed, memory and FLOPs of a row."),
    "data": ("prepare_data", "Prepare CIFAR from a local copy or the web."),
    "import": ("interop", "Make a run of weights that others published."),
    "theory": ("theory", "Theorem 1: convert, error, fit, pictures."),
}


def main() -> None:
    """Run the command that the first argument names; the others are its flags."""
    name, *flags = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(_help())
        return
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "attn-cnn --help lists them."
        sys.exit(_refuse(f"{name!a} is no command; {hint}"))
    mode = ["--mode=evaluate"] if name == "evaluate" else []
    sys.argv[1:] = [*mode, *flags]
    module = f"attn_cnn_jax.{COMMANDS[name][0]}"
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _help() -> str:
    lines = [f"  {name:<10}{text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        ["attn-cnn COMMAND [--flags]; each explains its flags with --help.", "", *lines]
    )


def _refuse(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
