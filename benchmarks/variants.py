"""The variants of a training step that `benchmarks.compare` sets side by side."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

OURS, PYTORCH = "ours", "PyTorch"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to compute a training step.

    `dtype` is that of activations and products; parameters are float32. `tf32` lets an
    NVIDIA device round the factors of float32 products. The other fields are
    PyTorch's: `best` compiles (on CUDA into graphs), puts channels last and fuses the
    optimizer; `kernel` computes attention with content.
    """

    side: str
    dtype: str = "float32"
    tf32: bool = False
    flush_denormals: bool = False
    best: bool = False
    kernel: str | None = None


_BFLOAT16 = Variant(PYTORCH, "bfloat16", flush_denormals=True, best=True)
VARIANTS = {
    "published": Variant(PYTORCH),  # eager
    "flushed": Variant(PYTORCH, flush_denormals=True),  # eager; CPUs only
    "tf32": Variant(PYTORCH, tf32=True),  # eager; GPUs only
    "best_float32": Variant(PYTORCH, tf32=True, flush_denormals=True, best=True),
    "best_bfloat16": _BFLOAT16,
    "sdpa_bfloat16": dataclasses.replace(_BFLOAT16, kernel="sdpa"),
    "ffpa_bfloat16": dataclasses.replace(_BFLOAT16, kernel="ffpa"),
    "ours_float32": Variant(OURS),
    "ours_tf32": Variant(OURS, tf32=True),  # GPUs only
    "ours_bfloat16": Variant(OURS, "bfloat16"),
}
# The first of ours leads, so that a run that is cut short has something to compare.
_ON_CPU = ("ours_float32", "published", "flushed", "best_float32")
_ON_GPU = (
    "ours_bfloat16",
    "ours_tf32",
    "ours_float32",
    "published",
    "tf32",
    "best_bfloat16",
)
_KERNELS = ("sdpa_bfloat16", "ffpa_bfloat16")


def default_variants(
    platform: str, *, has_content: bool, native_bfloat16: bool
) -> Sequence[str]:
    """Return the names of the variants that fit a platform ("cpu", "gpu") and model."""
    if platform == "gpu":
        return (*_ON_GPU, *(_KERNELS if has_content else ()))
    return (*_ON_CPU, *(("best_bfloat16",) if native_bfloat16 else ()))


def has_content(model: Mapping[str, Any]) -> bool:
    """Tell if a model's attention is a softmax of q . k, which kernels compute."""
    attention = model.get("attention")
    by_name = isinstance(attention, Mapping) and attention["name"]
    return model["name"] == "vit" or by_name == "learned_w_content"
