"""Draws the README's schematics into this folder.

python docs/figures/draw.py

The other figures are what `attn_cnn_jax.analyze` wrote for runs of docs/results.md, and
viewer.png is a screenshot of the viewer.
"""

import pathlib

from attn_cnn_jax.analysis import plots


def main(folder: pathlib.Path) -> None:
    """Write the two schematics as PNG."""
    drawn = {
        "normal_attention": plots.normal_attention(),
        "hierarchical_attention": plots.hierarchical_attention(),
    }
    with plots.use(plots.Style(formats=("png",))):
        for name, figure in drawn.items():
            (_, caption) = plots.save(figure, folder, name)
            caption.unlink()


if __name__ == "__main__":
    main(pathlib.Path(__file__).parent)
