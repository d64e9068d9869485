"""`python -m attn_cnn_jax.interop`: a workdir from a published state."""

import jax
from absl import flags
from ml_collections import config_flags

from attn_cnn_jax import checkpoint, command_line, models
from attn_cnn_jax.config import check
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import from_state
from attn_cnn_jax.interop.sources import read_state

_CONFIG = config_flags.DEFINE_config_file("config", None, "Config of the state.")
_SOURCE = flags.DEFINE_string("source", None, "The state: .npz, .safetensors or .pt.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory to make; holds no run yet.")


def main() -> None:
    """Write the workdir that the flags ask for."""
    config, source, workdir = _CONFIG.value, _SOURCE.value, _WORKDIR.value
    if config is None or not source or not workdir:
        raise UserError("--source, --config and --workdir are all needed.")
    check(config)
    if config.model.compute_dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    variables = from_state(read_state(source), config.model)
    checkpoint.write_variables(workdir, config, variables)
    print(f"{workdir}: {models.count_parameters(variables):,} parameters of {source}")


if __name__ == "__main__":
    command_line.run(main)
