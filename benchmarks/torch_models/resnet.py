"""ResNet-18 for 32 x 32 images (He et al., 2016), with a 3x3 stem and no pooling."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)), convolutions of 3x3."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False),
                nn.BatchNorm2d(width),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return a map smaller by the stride."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Four stages of two blocks, of 1, 2, 4 and 8 times the width; a linear map."""

    def __init__(
        self,
        model: Mapping[str, Any],
        num_classes: int,
        image_shape: tuple[int, int, int],
    ) -> None:
        super().__init__()
        width = model["width"]
        self.conv1 = nn.Conv2d(image_shape[-1], width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, 1)
        self.layer2 = _stage(width, 2 * width, 2)
        self.layer3 = _stage(2 * width, 4 * width, 2)
        self.layer4 = _stage(4 * width, 8 * width, 2)
        self.linear = nn.Linear(8 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [B, num_classes] of images [B, C, H, W]."""
        x = torch.relu(self.bn1(self.conv1(images)))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.linear(x.mean((2, 3)))


def _stage(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(channels, width, stride), BasicBlock(width, width, 1)
    )
