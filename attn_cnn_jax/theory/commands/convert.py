"""A trained ResNet with attention in the place of every convolution, as a new run.

python -m attn_cnn_jax.theory convert --workdir=runs/X --output=runs/X_as_attention
"""

from absl import flags

from attn_cnn_jax import command_line, parallel, remote
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.models.attention.convolutional import ENCODINGS
from attn_cnn_jax.run import Run
from attn_cnn_jax.theory.conversion import agreement, convert

_WORKDIR = command_line.define_folder("workdir", None, "Folder of the run of a ResNet.")
_OUTPUT = command_line.define_folder("output", None, "Folder of the new run.")
_SHARPNESS = flags.DEFINE_float(
    "sharpness", None, "Spread of the heads; default: the smallest that is exact."
)
_ENCODING = flags.DEFINE_enum(
    "encoding", "quadratic", list(ENCODINGS), "Relative positions of the heads."
)
_CHECKPOINT = flags.DEFINE_string("checkpoint", "last", "last, best, or a step.")
_CHECK = flags.DEFINE_integer(
    "check", 1000, "Test images on which both networks are compared; 0: none.", 0
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "In place of the run's data_dir.")


def main() -> None:
    """Write the new run, and say what it is and how far it agrees with the old one."""
    if not (_WORKDIR.value and _OUTPUT.value):
        raise UserError("give the run and the new one: --workdir=RUN --output=NEW_RUN.")
    workdir, output = map(remote.local, (_WORKDIR.value, _OUTPUT.value))
    which = command_line.checkpoint_named(_CHECKPOINT.value)
    conversion = convert(
        workdir,
        output,
        sharpness=_SHARPNESS.value,
        encoding=_ENCODING.value,
        checkpoint=which,
    )
    print(conversion, flush=True)
    if _CHECK.value:
        data_dir = _DATA_DIR.value
        before, after = Run(workdir, which, data_dir), Run(output, data_dir=data_dir)
        parallel.set_arithmetic(before.config)
        print(agreement(before, after, _CHECK.value))


if __name__ == "__main__":
    command_line.run(main)
