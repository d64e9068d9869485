"""A run without its degenerate heads, or without named ones, as a new run.

python -m attn_cnn_jax.prune --workdir=runs/X --output=runs/X_pruned
python -m attn_cnn_jax.prune --workdir=runs/X --output=runs/X_pruned --heads=2:1,2:5
"""

from absl import flags

from attn_cnn_jax import command_line, remote
from attn_cnn_jax.analysis import pruning
from attn_cnn_jax.errors import UserError

_WORKDIR = command_line.define_folder("workdir", None, "Folder of the run.")
_OUTPUT = command_line.define_folder("output", None, "Folder of the new run.")
_HEADS = flags.DEFINE_list(
    "heads", None, "Heads to remove, layer:head, both from 1; default degenerate ones."
)
_CHECKPOINT = flags.DEFINE_string("checkpoint", "last", "last, best, or a step.")
command_line.define_variant_flag()


def main() -> None:
    """Write the new run and say what was removed."""
    if not (_WORKDIR.value and _OUTPUT.value):
        raise UserError("give the run and the new one: --workdir=RUN --output=NEW_RUN.")
    removal = pruning.prune(
        remote.local(_WORKDIR.value),
        remote.local(_OUTPUT.value),
        command_line.checkpoint_named(_CHECKPOINT.value),
        _HEADS.value,
    )
    print(removal)


if __name__ == "__main__":
    command_line.run(main)
