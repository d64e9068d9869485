"""Maps of a run over its checkpoints, more than fit into memory at a time."""

from collections.abc import Iterator, Sequence

from attn_cnn_jax.analysis.attention_maps import AttentionMaps, attention_maps
from attn_cnn_jax.analysis.images import ChosenImages
from attn_cnn_jax.run import Run


class LazyMaps(Sequence[AttentionMaps]):
    """The maps of a run at several checkpoints, one in memory at a time."""

    def __init__(self, runs: Sequence[Run], chosen: ChosenImages) -> None:
        self._runs, self._chosen = runs, chosen
        self._kept: tuple[int, AttentionMaps] | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index):
        index = range(len(self._runs))[index]
        if self._kept is None or self._kept[0] != index:
            chosen = self._chosen
            maps = attention_maps(
                self._runs[index],
                chosen.images,
                names=chosen.names,
                indices=chosen.indices,
            )
            self._kept = index, maps
        return self._kept[1]

    def __iter__(self) -> Iterator[AttentionMaps]:
        return (self[index] for index in range(len(self)))
