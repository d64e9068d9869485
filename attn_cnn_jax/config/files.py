"""Config files: Python whose `get_config` returns the config of a run."""

import difflib
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import sys
import traceback
from typing import Any

from ml_collections import ConfigDict

from attn_cnn_jax.errors import UserError

_MODULE = "config_file"  # in sys.modules, where classes of the file look for it


def read_file(path: str | os.PathLike, options: str | None = None) -> ConfigDict:
    """Run the config file at `path` and return what its `get_config(options)` returns.

    `path` may be the bare name of a file in `folder()`, such as quadratic_isotropic.
    Without `options` it is called without any. Whatever the file raises becomes a
    `UserError` that names its line; Ctrl-C does not.
    """
    path = _find(os.fspath(path))
    try:
        get_config = getattr(_module(path), "get_config", None)
        if not callable(get_config):
            raise UserError(f"{path} has no function get_config.")
        config = get_config() if options is None else get_config(options)
    except UserError:
        raise
    except BaseException as error:  # sys.exit() too
        if type(error) is KeyboardInterrupt:
            raise
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise UserError(f"{_place(error, path)}: {reason}") from error
    if type(config) is not ConfigDict:
        kind = type(config).__name__
        raise UserError(f"{path}: get_config returned no ConfigDict, but a {kind}.")
    refuse_uncomputable(config)
    return config


def folder() -> pathlib.Path:
    """Return the folder of the rows' config files.

    It lies in the package where that is installed, and beside it in a checkout.
    """
    package = pathlib.Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def _find(path: str) -> str:
    if os.path.isfile(path):
        return path
    hint = "."
    if re.fullmatch(r"\w+", path, re.ASCII):
        names = sorted(file.stem for file in folder().glob("*.py"))
        if path in names:
            return str(folder() / f"{path}.py")
        near = difflib.get_close_matches(path, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; see attn-cnn list."
    raise UserError(f"there is no config file {path}{hint}")


def refuse_uncomputable(config: ConfigDict) -> None:
    """Raise a `UserError` where a reference raises, or a block lies in itself."""
    try:
        config.to_dict()
    except Exception as error:
        kind = type(error).__name__
        raise UserError(f"the config cannot be computed: {kind}: {error}") from error


def _module(path: str) -> Any:
    loader = importlib.machinery.SourceFileLoader(_MODULE, path)  # of any suffix
    spec: Any = importlib.util.spec_from_loader(_MODULE, loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    loader.exec_module(module)
    return module


def _place(error: BaseException, path: str) -> str:
    """Return "FILE, line N" of the file's last line on the way to the error."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    return f"{path}, line {lines[-1]}" if lines else path
