"""Read the state of a published network from a file; nothing in it is executed.

.npz: `numpy.savez(path, **{k: v.numpy() for k, v in model.state_dict().items()})`;
  where names start with `state/`, those alone are read.
.safetensors: the same names; needs the package safetensors.
.pt, .pth, .ckpt: a state_dict, a checkpoint of the original, or the report's dict of
  state_dicts; needs the package torch.
"""

import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attn_cnn_jax.errors import UserError, first_line

# No published state is larger than 250 MB, but a zip file may claim any size.
_MAX_BYTES = 4 * 2**30
_SAFE_TORCH = (2, 6)
# The report's code saves these beside the state_dicts, to resume a run.
_NO_WEIGHTS = {"epoch", "optim", "scheduler"}


def unwrap(state: Any) -> dict[str, Any]:
    """Return the tensors by name, without a checkpoint and DataParallel's prefix.

    A dict of state_dicts gives the names `<key of the dict>/<name in the state_dict>`.
    Raises `UserError` for anything but mappings of names.
    """
    if isinstance(state, Mapping):
        state = state.get("model_state_dict", state)
    if not isinstance(state, Mapping) or not all(isinstance(n, str) for n in state):
        raise UserError("the state is not a mapping of names to tensors.")
    if all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): state[name] for name in state}
    tensors = {}
    for name in (name for name in state if name not in _NO_WEIGHTS):
        if isinstance(state[name], Mapping):
            inner = unwrap(state[name])
            tensors |= {f"{name}/{tensor}": inner[tensor] for tensor in inner}
        else:
            tensors[name] = state[name]
    return tensors


def read_state(path: str | Path) -> dict[str, np.ndarray]:
    """Return the tensors of a file by name, as `unwrap` does; nothing in it is run.

    Raises `UserError` for another suffix, an unreadable file or a missing package.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise UserError(f"{path}: not one of {', '.join(_READERS)}.")
    try:
        state = _READERS[path.suffix](path)
        if sum(array.nbytes for array in state.values()) > _MAX_BYTES:
            raise UserError(f"{path} holds more than {_MAX_BYTES} bytes of tensors.")
        return state
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise UserError(
            f"{path.suffix} files need the package {package}: pip install {package}."
        ) from error
    except UserError:
        raise
    except Exception as error:  # each format has errors of its own
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > _MAX_BYTES:
            raise UserError(f"{path} is larger than {_MAX_BYTES} bytes when unpacked.")
    with np.load(path, allow_pickle=False) as arrays:
        prefix = "state/" if any(n.startswith("state/") for n in arrays.files) else ""
        names = [name for name in arrays.files if name.startswith(prefix)]
        return {name.removeprefix(prefix): arrays[name] for name in names}


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(path)


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    import torch  # pyright: ignore[reportMissingImports]

    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if version is None or (int(version[1]), int(version[2])) < _SAFE_TORCH:
        raise UserError(
            f"PyTorch {torch.__version__} can be made to run what a state holds "
            "(CVE-2025-32434): pip install 'torch>=2.6'."
        )
    state = torch.load(path, map_location="cpu", weights_only=True)
    return {name: value.detach().numpy() for name, value in unwrap(state).items()}


_READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".ckpt": _read_torch,
}
