"""The configs by name: parameters, published numbers, and those of your runs.

python -m attn_cnn_jax.results.list_configs
"""

import glob

from absl import flags

from attn_cnn_jax import command_line
from attn_cnn_jax.results import listing
from attn_cnn_jax.results.runs import read_runs

_WORKDIRS = flags.DEFINE_multi_string(
    "workdirs", ["runs/*"], "Folders of runs; globs; may be repeated."
)
command_line.define_variant_flag()


def main() -> None:
    """Print a line for each config: its name goes behind --config=."""
    given = flags.FLAGS["workdirs"].present
    there = given or any(map(glob.glob, _WORKDIRS.value))
    runs = read_runs(command_line.folders(_WORKDIRS.value)) if there else []
    print(listing.as_text(listing.lines(runs)))


if __name__ == "__main__":
    command_line.run(main)
