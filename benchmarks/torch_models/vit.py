"""The report's Vision Transformer: patches of a ResNet stem's map, heads of 400."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.torch_models.resnet import BasicBlock


class VisionTransformer(nn.Module):
    """Stem, patches, a class token of noise, positions, blocks, mean of the tokens."""

    def __init__(
        self,
        model: Mapping[str, Any],
        num_classes: int,
        image_shape: tuple[int, int, int],
        attention: Callable[..., Tensor] | None = None,
    ) -> None:
        super().__init__()
        height, width, channels = image_shape
        p, stem_width = model["patch_size"], model["stem_width"]
        self.patch_size = p
        self.stem = nn.Sequential(
            nn.Conv2d(channels, stem_width, 3, padding=1, bias=False),
            nn.BatchNorm2d(stem_width),
            nn.ReLU(),
            nn.Sequential(*(BasicBlock(stem_width, stem_width, 1) for _ in range(2))),
        )
        self.feature_upscale = nn.Linear(stem_width * p**2, model["width"])
        num_tokens = 1 + (height // p) * (width // p)
        self.position_embedding = nn.Embedding(num_tokens, model["width"])
        self.blocks = nn.ModuleList(
            _Block(model, attention) for _ in range(model["num_layers"])
        )
        self.fc = nn.Linear(model["width"], num_classes)

    def forward(self, images: Tensor, class_token: Tensor | None = None) -> Tensor:
        """Return logits [B, num_classes] of images [B, C, H, W].

        `class_token` [B, P] stands in place of a patch (channel, row, column); None
        draws it, anew at every call.
        """
        patches = F.unfold(self.stem(images), self.patch_size, stride=self.patch_size)
        patches = patches.transpose(1, 2)
        drawn = torch.rand_like(patches[:, 0]) if class_token is None else class_token
        tokens = torch.cat([drawn[:, None], patches], 1)
        x = self.feature_upscale(tokens) + self.position_embedding.weight
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean(1))


class _Block(nn.Module):
    """u = LN(x), z = attention(u) + u, m = LN(z), MLP(m) + m: as the report's code."""

    def __init__(
        self, model: Mapping[str, Any], attention: Callable[..., Tensor] | None
    ) -> None:
        super().__init__()
        self.attention = _Attention(model, attention)
        self.feedfwd = _FeedForward(model)

    def forward(self, x: Tensor) -> Tensor:
        return self.feedfwd(self.attention(x))


class _Attention(nn.Module):
    def __init__(
        self, model: Mapping[str, Any], fused: Callable[..., Tensor] | None
    ) -> None:
        super().__init__()
        width, self.num_heads = model["width"], model["num_heads"]
        inner = self.num_heads * model["head_dim"]
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(width, inner, bias=False)
        self.value = nn.Linear(width, inner, bias=False)
        self.out = nn.Linear(inner, width)
        self.layer_norm = nn.LayerNorm(width, eps=model["norm_epsilon"])
        self.dropout = nn.Dropout(model["attention_dropout_rate"])
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer_norm(x)
        queries, keys, values = (
            project(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )  # [B, N, T, head_dim]
        if self.fused is not None:
            dropout = self.dropout.p if self.training else 0.0
            mixed = self.fused(queries, keys, values, dropout_p=dropout)
        else:
            scale = queries.shape[-1] ** -0.5
            probs = (scale * queries @ keys.transpose(-1, -2)).softmax(-1)
            mixed = self.dropout(probs) @ values
        return self.out(mixed.transpose(1, 2).flatten(2)) + x


class _FeedForward(nn.Module):
    def __init__(self, model: Mapping[str, Any]) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(model["width"], eps=model["norm_epsilon"])
        self.fc_1 = nn.Linear(model["width"], model["mlp_dim"])
        self.fc_2 = nn.Linear(model["mlp_dim"], model["width"])

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer_norm(x)
        return self.fc_2(F.gelu(self.fc_1(x))) + x
