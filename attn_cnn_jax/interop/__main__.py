"""`python -m attn_cnn_jax.interop` makes a workdir from a published state."""

from attn_cnn_jax import checkpoint, command_line, models, parallel, remote
from attn_cnn_jax.config import check
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop import from_state
from attn_cnn_jax.interop.state_files import read_state
from attn_cnn_jax.run import refuse_misfits

_CONFIG = command_line.define_config_flag()
_SOURCE = command_line.define_path(
    "source", None, "The state: .npz, .safetensors, .pt or .ckpt."
)
_WORKDIR = command_line.define_folder(
    "workdir", None, "Folder to make; holds no run yet."
)


def main() -> None:
    """Write the workdir that the flags ask for."""
    config, source, workdir = _CONFIG.value, _SOURCE.value, _WORKDIR.value
    if config is None or not source or not workdir:
        raise UserError("--source, --config and --workdir are all needed.")
    check(config)
    parallel.set_arithmetic(config)
    variables = from_state(read_state(source), config.model)
    if "classifier" not in variables["params"]:
        raise UserError(
            f"{source} holds one block; a workdir needs the state of a whole network."
        )
    complaint = f"{source} does not fit config.dataset.name={config.dataset.name}"
    refuse_misfits(config, variables, complaint)
    checkpoint.write_variables(remote.local(workdir), config, variables)
    print(f"{workdir}: {models.count_parameters(variables):,} parameters of {source}")


if __name__ == "__main__":
    command_line.run(main)
