"""SAN for small images (Zhao et al., 2020), with neighbourhoods that are copied out."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Of a block's width C: C / 16 channels relate pixels, C / 4 are aggregated, and eight
# of those share a plane of weights.
_RELATION, _VALUE, _SHARE = 16, 4, 8


class SAN(nn.Module):
    """A stem, then stages: halve the map, change the width, bottlenecks, a norm."""

    def __init__(
        self,
        model: Mapping[str, Any],
        num_classes: int,
        image_shape: tuple[int, int, int],
    ) -> None:
        super().__init__()
        widths = model["widths"]
        self.conv_in = nn.Conv2d(image_shape[-1], widths[0], 1, bias=False)
        self.bn_in = nn.BatchNorm2d(widths[0])
        before = (widths[0], *widths)
        self.num_stages = len(widths)
        for i, width in enumerate(widths):
            blocks = (
                _Bottleneck(model, width, model["kernel_sizes"][i])
                for _ in range(model["num_blocks"][i])
            )
            self.add_module(f"conv{i}", nn.Conv2d(before[i], width, 1, bias=False))
            self.add_module(f"layer{i}", nn.Sequential(*blocks))
            self.add_module(f"bn{i}", nn.BatchNorm2d(width))
        self.fc = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [B, num_classes] of images [B, C, H, W]."""
        x = torch.relu(self.bn_in(self.conv_in(images)))
        for i in range(self.num_stages):
            x = getattr(self, f"conv{i}")(F.max_pool2d(x, 2))
            x = getattr(self, f"layer{i}")(x)
            x = torch.relu(getattr(self, f"bn{i}")(x))
        return self.fc(x.mean((2, 3)))


class _Bottleneck(nn.Module):
    """x + conv(relu(norm(attention(relu(norm(x))))))."""

    def __init__(self, model: Mapping[str, Any], width: int, kernel_size: int) -> None:
        super().__init__()
        layer = {"pairwise": _Pairwise, "patchwise": _Patchwise}[model["attention"]]
        self.bn1 = nn.BatchNorm2d(width)
        self.sam = layer(width, kernel_size, model["projection_bias"])
        self.bn2 = nn.BatchNorm2d(width // _VALUE)
        self.conv = nn.Conv2d(width // _VALUE, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.sam(torch.relu(self.bn1(x)))
        return x + self.conv(torch.relu(self.bn2(mixed)))


class _Attention(nn.Module):
    """Weights of the taps around every pixel, and the sum of the values by them."""

    def __init__(self, width: int, kernel_size: int, bias: bool) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.relation, values = width // _RELATION, width // _VALUE
        self.num_planes = values // _SHARE
        self.conv1 = nn.Conv2d(width, self.relation, 1, bias=bias)
        self.conv2 = nn.Conv2d(width, self.relation, 1, bias=bias)
        self.conv3 = nn.Conv2d(width, values, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights(self.conv1(x), self.conv2(x))  # [B, G, T, HW]
        values = self.taps(self.conv3(x)).unflatten(1, (-1, self.num_planes))
        mixed = (values * weights[:, None]).sum(3)  # channel s G + g has plane g
        return mixed.flatten(1, 2).unflatten(-1, x.shape[2:])

    def taps(self, x: Tensor) -> Tensor:
        """Return the k x k pixels around all, [B, C, T, HW]; the edge mirrors them."""
        border = (self.kernel_size - 1) // 2
        x = F.pad(x, (border,) * 4, mode="reflect")
        return F.unfold(x, self.kernel_size).unflatten(1, (-1, self.kernel_size**2))

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the weights of all taps, [B, G, T, HW]."""
        raise NotImplementedError


class _Pairwise(_Attention):
    """softmax over taps of gamma(query - key, difference of positions)."""

    def __init__(self, width: int, kernel_size: int, bias: bool) -> None:
        super().__init__(width, kernel_size, bias)
        self.conv_p = nn.Conv2d(2, 2, 1)
        features = self.relation + 2
        self.conv_w = _gamma(features, self.relation, self.num_planes)

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        height, width = queries.shape[2:]
        x = torch.linspace(-1, 1, width, device=keys.device, dtype=keys.dtype)
        y = torch.linspace(-1, 1, height, device=keys.device, dtype=keys.dtype)
        positions = torch.stack(torch.meshgrid(x, y, indexing="xy"))
        positions = self.conv_p(positions[None])
        between = self._differences(positions, positions)
        between = between.expand(len(queries), -1, -1, -1)
        relation = torch.cat([self._differences(queries, keys), between], 1)
        return self.conv_w(relation).softmax(2)

    def _differences(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries.flatten(2)[:, :, None] - self.taps(keys)


class _Patchwise(_Attention):
    """gamma(query, the keys of all taps) as it is, without a softmax."""

    def __init__(self, width: int, kernel_size: int, bias: bool) -> None:
        super().__init__(width, kernel_size, bias)
        taps, planes = kernel_size**2, self.num_planes
        self.conv_w = _gamma(self.relation * (taps + 1), planes, taps * planes)

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        patch = torch.cat([queries.flatten(2), self.taps(keys).flatten(1, 2)], 1)
        weights = self.conv_w(patch[:, :, None])[:, :, 0]
        return weights.unflatten(1, (self.num_planes, -1))


def _gamma(features: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(features),
        nn.ReLU(),
        nn.Conv2d(features, hidden, 1, bias=False),
        nn.BatchNorm2d(hidden),
        nn.ReLU(),
        nn.Conv2d(hidden, outputs, 1),
    )
