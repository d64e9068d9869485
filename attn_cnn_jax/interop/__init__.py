"""Convert weights of the published codes (PyTorch, Google's Flax) to our variables.

    python -m attn_cnn_jax.interop --source=STATE --config=FILE.py --workdir=DIR

makes a workdir that evaluates and analyses like one that was trained here. The config
is that of the run that the weights come from; `state_files` says what a STATE is.
"""

from attn_cnn_jax.interop.states import (
    from_attention_cnn,
    from_report,
    from_state,
    to_attention_cnn,
    to_report,
)

__all__ = [
    "from_attention_cnn",
    "from_report",
    "from_state",
    "to_attention_cnn",
    "to_report",
]
