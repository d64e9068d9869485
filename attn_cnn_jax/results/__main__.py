"""Tables 1 to 4 of the papers from runs, as Markdown and CSV.

python -m attn_cnn_jax.results --workdirs='runs/*'
"""

import pathlib

from absl import flags

from attn_cnn_jax import command_line, remote
from attn_cnn_jax.results.tables import write_tables

_WORKDIRS = flags.DEFINE_multi_string(
    "workdirs", ["runs/*"], "Folders of runs; globs; may be repeated."
)
_OUTPUT = command_line.define_folder("output", "tables", "Folder to write to.")
command_line.define_variant_flag()


def main() -> int:
    """Write the tables and print them as Markdown; returns the exit status."""
    folder = pathlib.Path(remote.local(_OUTPUT.value))
    for path in write_tables(folder, command_line.folders(_WORKDIRS.value)):
        if path.suffix == ".md":
            print(path.read_text(encoding="utf-8"))
    print(f"written to {folder}")
    return 0


if __name__ == "__main__":
    command_line.run(main)
