"""Tables 1 to 4 of the papers from runs, as Markdown, CSV and LaTeX.

python -m attn_cnn_jax.results --workdirs='runs/*'
python -m attn_cnn_jax.results --table=1 --only_measured --format=latex
"""

import pathlib

from absl import flags

from attn_cnn_jax import command_line, remote
from attn_cnn_jax.results.table_files import FORMATS, TABLES, write_tables

_WORKDIRS = flags.DEFINE_multi_string(
    "workdirs", ["runs/*"], "Folders of runs; globs; may be repeated."
)
_OUTPUT = command_line.define_folder("output", "tables", "Folder to write to.")
_TABLE = flags.DEFINE_list(
    "table", list(TABLES), f"{', '.join(TABLES)}; several with commas."
)
_ONLY_MEASURED = flags.DEFINE_bool(
    "only_measured", False, "Without the published rows that no run belongs to."
)
_FORMAT = flags.DEFINE_list(
    "format", ["markdown", "csv"], f"{', '.join(FORMATS)}; several with commas."
)
command_line.define_variant_flag()


def main() -> int:
    """Write the tables and print them in the first format; returns the exit status."""
    folder = pathlib.Path(remote.local(_OUTPUT.value))
    paths = write_tables(
        folder,
        command_line.folders(_WORKDIRS.value),
        _TABLE.value,
        _FORMAT.value,
        _ONLY_MEASURED.value,
    )
    written = {path.stem.removeprefix("table_") for path in paths}
    for path in paths:
        if path.suffix == paths[0].suffix:
            print(path.read_text(encoding="utf-8"))
    for name in _TABLE.value:
        if name != "other" and name not in written:
            print(f"table {name} is left out, for none of these runs is in it")
    print(f"written to {folder}")
    return 0


if __name__ == "__main__":
    command_line.run(main)
