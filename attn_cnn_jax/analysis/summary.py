"""What the heads of a run show, in words that are computed from their numbers."""

import textwrap
from collections.abc import Sequence

from attn_cnn_jax.analysis.ablation import Ablation
from attn_cnn_jax.analysis.heads import HeadStatistics, HeadTable
from attn_cnn_jax.analysis.heads.write import aligned

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


def as_text(table: HeadTable, ablation: Ablation | None = None) -> str:
    """Return a line for each layer, and a sentence on its clearest shift.

    With an `ablation` of the same checkpoint the sentence says what that head is worth.
    """
    title = ("layer", "grid", "heads", "offsets covered", "largest kernel", "which")
    lines = [
        (
            layer.layer,
            f"{layer.grid[0]} x {layer.grid[1]}",
            str(layer.num_heads),
            str(len(layer.covered)),
            f"{layer.kernel_size} x {layer.kernel_size}" if layer.kernel_size else "-",
            " ".join(f"({row:+d},{column:+d})" for row, column in layer.covered),
        )
        for layer in table.layers
    ]
    begin = f"{table.run}, checkpoint of step {table.step} (epoch {table.epoch:.4g}):"
    words = textwrap.fill(takeaway(table, ablation), 79)
    return "\n".join([begin, aligned([title, *lines]), "", words])


def takeaway(table: HeadTable, ablation: Ablation | None = None) -> str:
    """Return what the layers and the head that is most of a shift say, as sentences."""
    said = [
        f"{layer.layer.capitalize()} covers all offsets of a {layer.kernel_size} x "
        f"{layer.kernel_size} kernel, so that it can compute any such convolution."
        for layer in table.layers
        if layer.kernel_size > 1
    ]
    head = clearest_shift(table.heads)
    if head is None:
        return " ".join([*said, "Every head looks most at the pixel itself."])
    name = f"{head.layer.capitalize()} head {head.head}"
    share = f"{100 * head.best_mass:.0f} % of its attention"
    where = in_words(head.best_offset)
    if not head.covers:
        said.append(
            f"No head looks at another pixel alone; {name} comes closest, with {share} "
            f"on the pixel {where}."
        )
        return " ".join(said)
    said.append(
        f"{name} is a shift: it gives {share} to the pixel {where}, as one tap of a "
        "convolution does."
    )
    if ablation is not None:
        layer = ablation.layers.index(head.layer)
        without = ablation.accuracies[layer][head.head - 1]
        verb = "falls" if without < ablation.accuracy else "goes"
        said.append(
            f"Without it accuracy {verb} from {100 * ablation.accuracy:.1f} to "
            f"{100 * without:.1f} % ({ablation.num_images:,} test images)."
        )
    return " ".join(said)


def clearest_shift(heads: Sequence[HeadStatistics]) -> HeadStatistics | None:
    """Return the head with the most attention on one other pixel, None without any.

    Of heads that cover their offset one of the first layer that has any is taken.
    """
    moved = [head for head in heads if head.best_offset != (0, 0)]
    covering = [head for head in moved if head.covers]
    of_layer = [head for head in covering if head.layer == covering[0].layer]
    return max(of_layer or moved, key=lambda head: head.best_mass, default=None)


def in_words(offset: tuple[int, int]) -> str:
    """Return an offset (rows, columns) as "one row up and two columns right"."""
    parts = [
        f"{_number(abs(length))} {noun}{'s' * (abs(length) > 1)} {way[length > 0]}"
        for length, noun, way in (
            (offset[0], "row", ("up", "down")),
            (offset[1], "column", ("left", "right")),
        )
        if length
    ]
    return " and ".join(parts) or "itself"


def _number(value: int) -> str:
    return _NUMBERS[value] if value < len(_NUMBERS) else str(value)
