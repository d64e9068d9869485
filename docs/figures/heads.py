"""Draws the README's figure: where the heads of a trained quadratic network look.

python docs/figures/heads.py runs/laptop_seed42 docs/figures/heads.png
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from attn_cnn_jax import checkpoint

# Half of an isotropic Gaussian's mass lies within sqrt(2 ln 2) standard deviations.
HALF_MASS = np.sqrt(2 * np.log(2))
REACH = 4.5  # pixels of the grid around the query


def main(workdir: str, path: str) -> None:
    """Draw every layer of the run in `workdir` into `path`."""
    run = checkpoint.load(workdir)
    layers = range(run.config.model.num_layers)
    figure, axes = plt.subplots(
        1, len(layers), figsize=(2.6 * len(layers), 2.8), layout="constrained"
    )
    colours = plt.get_cmap("tab10").colors
    for layer, axis in zip(layers, np.atleast_1d(axes), strict=True):
        attention = run.variables["params"][f"block_{layer}"]["attention"]
        for head, (row, column) in enumerate(attention["centers"]):
            radius = HALF_MASS / max(abs(float(attention["spreads"][head])), 1e-3)
            colour = colours[head % len(colours)]
            axis.add_patch(
                plt.Circle((column, row), radius, fill=False, color=colour, lw=1.2)
            )
            axis.plot(column, row, ".", color=colour, ms=4)
        axis.add_patch(plt.Rectangle((-0.5, -0.5), 1, 1, fill=False, lw=2))
        axis.set(
            xlim=(-REACH, REACH),
            ylim=(REACH, -REACH),
            aspect="equal",
            title=f"layer {layer + 1}",
            xticks=np.arange(-4, 5, 2),
            yticks=np.arange(-4, 5, 2),
        )
        axis.set_xticks(np.arange(-4.5, 5), minor=True)
        axis.set_yticks(np.arange(-4.5, 5), minor=True)
        axis.grid(which="minor", lw=0.4, color="0.85")
        axis.tick_params(which="both", length=0, labelsize=7)
        axis.set_axisbelow(True)
        axis.title.set_size(10)
    np.atleast_1d(axes)[0].set_ylabel("row offset, pixels of the grid", fontsize=8)
    figure.supxlabel("column offset", fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
