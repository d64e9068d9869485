"""The paper's fully attentional network, with three of its attentions."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Fused = Callable[..., Tensor] | None


class SelfAttentionNetwork(nn.Module):
    """Patches, blocks on the grid, the mean over pixels, a linear classifier."""

    def __init__(
        self,
        model: Mapping[str, Any],
        num_classes: int,
        image_shape: tuple[int, int, int],
        attention: Fused = None,
    ) -> None:
        super().__init__()
        height, width, channels = image_shape
        self.patch_size = model["patch_size"]
        grid = height // self.patch_size, width // self.patch_size
        fused = {} if attention is None else {"fused": attention}
        self.features_upscale = nn.Linear(channels * self.patch_size**2, model["width"])
        layers = [_Block(model, grid, fused) for _ in range(model["num_layers"])]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.classifier = nn.Linear(model["width"], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [B, num_classes] of images [B, C, H, W]."""
        # Patches of p x p pixels, in the order (row, column, channel).
        p, (batch, channels, height, width) = self.patch_size, images.shape
        x = images.reshape(batch, channels, height // p, p, width // p, p)
        x = x.permute(0, 2, 4, 3, 5, 1).flatten(3)
        x = self.features_upscale(x)
        for layer in self.encoder["layer"]:  # pyright: ignore[reportGeneralTypeIssues]
            x = layer(x)
        return self.classifier(x.mean((1, 2)))


class _Block(nn.Module):
    """Attention and MLP, each with a residual and then LayerNorm."""

    def __init__(
        self, model: Mapping[str, Any], grid: tuple[int, int], fused: Mapping[str, Any]
    ) -> None:
        super().__init__()
        fields = dict(model["attention"])
        name, width = fields.pop("name"), model["width"]
        if name not in _ATTENTIONS:
            raise ValueError(f"no PyTorch attention here is called {name}")
        attention = _ATTENTIONS[name](fields, width, model["num_heads"], grid, **fused)
        norm = partial(nn.LayerNorm, width, eps=model["norm_epsilon"])

        def output(features: int) -> nn.ModuleDict:
            dense = nn.Linear(features, width)
            return nn.ModuleDict({"dense": dense, "LayerNorm": norm()})

        self.attention = nn.ModuleDict({"self": attention, "output": output(width)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, model["mlp_dim"])})
        self.output = output(model["mlp_dim"])
        self.dropout = nn.Dropout(model["dropout_rate"])

    def forward(self, x: Tensor) -> Tensor:
        x = self._add_and_norm(x, self.attention["self"](x), self.attention["output"])
        hidden = F.gelu(self.intermediate["dense"](x))
        return self._add_and_norm(x, hidden, self.output)

    def _add_and_norm(self, x: Tensor, update: Tensor, output: Any) -> Tensor:
        return output["LayerNorm"](x + self.dropout(output["dense"](update)))


class _Attention(nn.Module):
    """Heads that mix the pixels by probabilities; one map projects them together."""

    def __init__(
        self,
        fields: Mapping[str, Any],
        width: int,
        num_heads: int,
        grid: tuple[int, int],
    ) -> None:
        super().__init__()
        self.num_heads, self.grid = num_heads, grid
        self.value = nn.Linear(num_heads * width, width)
        self.dropout = nn.Dropout(fields["dropout_rate"])

    def _project(self, heads: Tensor) -> Tensor:
        """Return [B, H, W, D] of the heads' means [B, Q, N, D]."""
        return self.value(heads.flatten(2)).unflatten(1, self.grid)


class _Quadratic(_Attention):
    """softmax(-1/2 (d - center)^T P (d - center)) of offsets d, for the whole batch.

    P is spread^2 I, or A A^T of a 2 x 2 spread A.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        width: int,
        num_heads: int,
        grid: tuple[int, int],
    ) -> None:
        super().__init__(fields, width, num_heads, grid)
        centers = fields["center_std"] * torch.randn(num_heads, 2)
        mean = self._identity(num_heads)
        spreads = mean + fields["spread_std"] * torch.randn(mean.shape)
        self.attention_centers = nn.Parameter(centers)
        self.attention_spreads = nn.Parameter(spreads)
        # (d1, d2, d1^2, d2^2, d1 d2) of every pair of pixels: [Q, K, 5].
        rows, cols = (offsets(length).float() for length in grid)
        d1 = rows[:, None, :, None].expand(*grid, *grid).flatten(2).flatten(0, 1)
        d2 = cols[None, :, None, :].expand(*grid, *grid).flatten(2).flatten(0, 1)
        features = torch.stack([d1, d2, d1**2, d2**2, d1 * d2], -1)
        self.register_buffer("features", features, persistent=False)

    @staticmethod
    def _identity(num_heads: int) -> Tensor:
        return torch.ones(num_heads)

    def _precision(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return a, b, c of P = [[a, b], [b, c]], each [N]."""
        square = self.attention_spreads**2
        return square, torch.zeros_like(square), square

    def forward(self, x: Tensor) -> Tensor:
        (a, b, c), (m1, m2) = self._precision(), self.attention_centers.T
        linear = -2 * (a * m1 + b * m2), -2 * (c * m2 + b * m1)
        weights = -0.5 * torch.stack([*linear, a, c, 2 * b], -1)
        scores = torch.einsum("nf,qkf->qnk", weights, self.features)
        probs = self.dropout(scores.softmax(-1))
        return self._project(torch.einsum("qnk,bkd->bqnd", probs, x.flatten(1, 2)))


class _NonIsotropic(_Quadratic):
    @staticmethod
    def _identity(num_heads: int) -> Tensor:
        return torch.eye(2).repeat(num_heads, 1, 1)

    def _precision(self) -> tuple[Tensor, Tensor, Tensor]:
        spreads = self.attention_spreads
        precision = spreads @ spreads.transpose(1, 2)
        return precision[:, 0, 0], precision[:, 0, 1], precision[:, 1, 1]


class _Learned(_Attention):
    """The tables of both learned attentions: an embedding an offset, for each axis."""

    def __init__(
        self,
        fields: Mapping[str, Any],
        width: int,
        num_heads: int,
        grid: tuple[int, int],
        position_dim: int,
    ) -> None:
        super().__init__(fields, width, num_heads, grid)
        num_offsets = 2 * fields["max_position"] - 1
        self.row_embeddings = nn.Embedding(num_offsets, position_dim)
        self.col_embeddings = nn.Embedding(num_offsets, position_dim)
        indices = (offsets(length) + num_offsets // 2 for length in grid)
        for name, index in zip(("row_index", "col_index"), indices, strict=True):
            self.register_buffer(name, index, persistent=False)


class _LearnedWithoutContent(_Learned):
    """softmax(key . row[k - i] + key . col[l - j]), with a dropout mask an image.

    The published names are crossed: its "row" tables follow the columns of the image.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        width: int,
        num_heads: int,
        grid: tuple[int, int],
    ) -> None:
        dim = fields["position_dim"]
        super().__init__(fields, width, num_heads, grid, dim)
        self.head_keys_row = nn.Linear(dim, num_heads, bias=False)
        self.head_keys_col = nn.Linear(dim, num_heads, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.head_keys_col(self.col_embeddings(self.row_index))  # [Hq, Hk, N]
        cols = self.head_keys_row(self.row_embeddings(self.col_index))  # [Wq, Wk, N]
        rows = rows.transpose(1, 2)[:, None, :, :, None]
        scores = rows + cols.transpose(1, 2)[None, :, :, None, :]
        probs = scores.flatten(3).flatten(0, 1).softmax(-1)  # [Q, N, K]
        probs = self.dropout(probs.expand(len(x), *probs.shape))
        return self._project(torch.einsum("bqnk,bkd->bqnd", probs, x.flatten(1, 2)))


class _LearnedWithContent(_Learned):
    """softmax((q . k + q[:D/2] . row[k - i] + q[D/2:] . col[l - j]) / sqrt(D))."""

    def __init__(
        self,
        fields: Mapping[str, Any],
        width: int,
        num_heads: int,
        grid: tuple[int, int],
        fused: Fused = None,
    ) -> None:
        super().__init__(fields, width, num_heads, grid, width // 2)
        self.query = nn.Linear(width, num_heads * width)
        self.key = nn.Linear(width, num_heads * width)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        heads = (self.num_heads, x.shape[-1])
        queries, keys = self.query(x).unflatten(-1, heads), self.key(x)
        keys = keys.unflatten(-1, heads).flatten(1, 2)
        by_row, by_col = queries.chunk(2, -1)
        rows = self.row_embeddings(self.row_index)  # [Hq, Hk, D / 2]
        cols = self.col_embeddings(self.col_index)
        rows = torch.einsum("bijnd,ikd->bijnk", by_row, rows)
        cols = torch.einsum("bijnd,jld->bijnl", by_col, cols)
        positions = rows[..., :, None] + cols[..., None, :]
        positions = positions.flatten(4).flatten(1, 2)  # [B, Q, N, K]
        queries, pixels = queries.flatten(1, 2), x.flatten(1, 2)
        scale = x.shape[-1] ** -0.5
        if self.fused is not None:
            values = pixels[:, None].expand(-1, self.num_heads, -1, -1)
            mixed = self.fused(
                queries.transpose(1, 2),
                keys.transpose(1, 2),
                values.to(queries.dtype),
                attn_mask=(scale * positions).transpose(1, 2),
                dropout_p=self.dropout.p if self.training else 0.0,
            )
            return self._project(mixed.transpose(1, 2))
        content = torch.einsum("bqnd,bknd->bqnk", queries, keys)
        probs = self.dropout((scale * (content + positions)).softmax(-1))
        return self._project(torch.einsum("bqnk,bkd->bqnd", probs, pixels))


_ATTENTIONS = {
    "quadratic_isotropic": _Quadratic,
    "quadratic_nonisotropic": _NonIsotropic,
    "learned_wo_content": _LearnedWithoutContent,
    "learned_w_content": _LearnedWithContent,
}


def offsets(length: int) -> Tensor:
    """Return the offsets key - query along an axis of the grid, [query, key]."""
    position = torch.arange(length)
    return position[None, :] - position[:, None]
