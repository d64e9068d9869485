"""A training step of PyTorch, in the variant that a worker is told."""

import importlib
import platform
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import torch_models
from benchmarks.variants import VARIANTS

# The rate of the first update or so of a warm-up: at the full one a network that sees
# the same random images for ever soon holds numbers that are not finite.
_LEARNING_RATE = 1e-4
_CEILING_SIDE = {"cpu": 2048, "cuda": 8192}


class Step:
    """A network, its optimizer and a batch of random images, all on the device."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.variant = VARIANTS[spec["variant"]]
        self.device = torch.device("cuda" if spec["platform"] == "gpu" else "cpu")
        self.dtype = getattr(torch, self.variant.dtype)
        self._set_modes()
        config, batch_size = spec["config"], spec["batch_size"]
        torch.manual_seed(config["seed"])
        self.model: Any = torch_models.build(
            config["model"],
            spec["num_classes"],
            spec["image_shape"],
            _kernel(self.variant.kernel),
        )
        best = self.variant.best
        layout = torch.channels_last if best else torch.contiguous_format
        self.model.to(self.device).to(memory_format=layout)
        height, width, channels = spec["image_shape"]
        images = torch.randn(batch_size, channels, height, width)
        self.images = images.to(self.device, memory_format=layout)
        labels = torch.randint(spec["num_classes"], (batch_size,))
        self.labels = labels.to(self.device)
        self.smoothing = config["label_smoothing"]
        self.optimizer = self._optimizer(config["optimizer"])
        self.forward: Any = self.model
        if self.variant.best:
            graphs = "reduce-overhead" if self.device.type == "cuda" else "default"
            self.forward = torch.compile(self.model, mode=graphs, dynamic=False)

    def __call__(self) -> None:
        """Update the network once, and wait for it."""
        if self.variant.best and self.device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()
        lower = self.dtype == torch.bfloat16
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=lower):
            logits = self.forward(self.images)
            loss = F.cross_entropy(logits, self.labels, label_smoothing=self.smoothing)
        loss.backward()
        self.optimizer.step()
        self._wait()

    def peak_bytes(self) -> int | None:
        """Return the most that tensors took on a GPU; None on a CPU."""
        if self.device.type == "cpu":
            return None
        return torch.cuda.max_memory_allocated(self.device)

    def product(self) -> tuple[int, Any]:
        """Return the operations of a large square product, and what computes it."""
        side = _CEILING_SIDE[self.device.type]
        a = torch.randn(side, side, device=self.device).to(self.dtype)
        out = torch.empty_like(a)

        def multiply() -> None:
            torch.mm(a, a, out=out)
            self._wait()

        return 2 * side**3, multiply

    def facts(self) -> dict[str, Any]:
        """Return the device and the versions."""
        on_gpu = self.device.type == "cuda"
        return {
            "device_kind": torch.cuda.get_device_name() if on_gpu else "cpu",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }

    def _set_modes(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self.variant.tf32
        torch.backends.cudnn.allow_tf32 = self.variant.tf32
        torch.backends.cudnn.benchmark = self.variant.best
        torch.set_flush_denormal(self.variant.flush_denormals)

    def _optimizer(self, fields: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Return SGD; what the config excludes does not decay."""
        excluded = tuple(fields["decay_exclude"])
        groups: tuple[list, list] = [], []
        for name, parameter in self.model.named_parameters():
            groups[name.endswith(excluded)].append(parameter)
        decay = {"params": groups[False], "weight_decay": fields["weight_decay"]}
        no_decay = {"params": groups[True], "weight_decay": 0.0}
        return torch.optim.SGD(
            [group for group in (decay, no_decay) if group["params"]],
            lr=_LEARNING_RATE,
            momentum=fields["momentum"],
            nesterov=fields["nesterov"],
            fused=self.variant.best,
        )

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def training_flops(
    model: Mapping[str, Any],
    num_classes: int,
    image_shape: tuple[int, int, int],
    batch_size: int,
) -> int:
    """Count the operations of the products of a step in the published form.

    Matrix products and convolutions, forward and backward, 2 x multiply-adds; no array
    is made. Raises `ValueError` where PyTorch has no such network here.
    """
    height, width, channels = image_shape
    with torch.device("meta"):
        network = torch_models.build(model, num_classes, image_shape)
        images = torch.empty(batch_size, channels, height, width)
    with FlopCounterMode(display=False) as counter:
        network(images).sum().backward()
    return counter.get_total_flops()


def _kernel(name: str | None) -> Any:
    """Return attention with the arguments of scaled_dot_product_attention, by name."""
    if name == "ffpa":
        try:
            return importlib.import_module("ffpa_attn").ffpa_attn_func
        except ImportError as error:
            raise ValueError("this variant needs the package ffpa-attn") from error
    return F.scaled_dot_product_attention if name == "sdpa" else None
