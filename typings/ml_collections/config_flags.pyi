from typing import Any

from absl import flags

def DEFINE_config_file(
    name: str,
    default: str | None = ...,
    help_string: str = ...,
    *,
    sys_argv: list[str] | None = ...,
) -> flags.FlagHolder[Any]: ...
def get_config_filename(config_flag: flags.Flag) -> str: ...
def get_override_values(config_flag: flags.Flag) -> dict[str, Any]: ...
