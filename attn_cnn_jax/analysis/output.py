"""The files that an analysis writes, and what is said of them."""

import pathlib
from collections.abc import Callable, Sequence

from attn_cnn_jax.analysis import (
    ablation,
    closest_convolution,
    figures,
    heads,
    plots,
    summary,
)
from attn_cnn_jax.analysis.ablation import Ablation
from attn_cnn_jax.analysis.figure_request import FigureRequest


class Output:
    """A folder of figures and numbers; `say` prints a text.

    It says each file and each table as soon as it is written. A `brief` one is a
    context manager, and says the names of the figures and the summary at its end.
    """

    def __init__(
        self, folder: pathlib.Path, say: Callable[[str], None], *, brief: bool = False
    ) -> None:
        self.folder, self._tell = folder, say
        self._say = (lambda text: None) if brief else say
        self._brief = brief
        self.written: list[str] = []  # names of figures
        self._table: heads.HeadTable | None = None
        self._ablation: Ablation | None = None

    def save(self, figure: plots.Figure, name: str) -> None:
        """Write a figure under a name, in the formats of the style."""
        self._say(plots.listed(plots.save(figure, self.folder, name)))

    def draw(self, name: str, request: FigureRequest) -> None:
        """Write the named figure of `figures.FIGURES` with the numbers behind it."""
        for file, figure in figures.draw(name, request):
            self.save(figure, file)
        if name == "heads":
            self._table = request.numbers
            heads.write_csv(request.numbers, self.folder / "heads.csv")
            heads.write_json(request.numbers, self.folder / "heads.json")
            self._say(heads.as_text(request.numbers))
            self._say(f"{self.folder / 'heads.csv'}, heads.json")
        elif name == "closest_convolution":
            self._say(closest_convolution.as_text(request.convolutions))
            self._write_convolutions([request.convolutions], "layers")
        elif name == "convolution_epochs":
            self._write_convolutions(request.convolution_epochs, name)

    def _write_convolutions(
        self, tables: Sequence[closest_convolution.ConvolutionTable], name: str
    ) -> None:
        closest_convolution.write_csv(tables, self.folder / f"{name}.csv")
        closest_convolution.write_json(tables, self.folder / f"{name}.json")
        self._say(f"{self.folder / f'{name}.csv'}, {name}.json")

    def ablation(self, result: Ablation, title: str) -> None:
        """Write what each head is worth, as figure and numbers."""
        self._ablation = result
        self.save(plots.ablated_accuracy(result, title=title), "ablation")
        ablation.write_csv(result, self.folder / "ablation.csv")
        ablation.write_json(result, self.folder / "ablation.json")
        errors = (error for layer in result.standard_errors for error in layer)
        self._say(
            f"{self.folder / 'ablation.csv'}, ablation.json: accuracy "
            f"{result.accuracy:.4f} with all heads, standard error "
            f"{result.standard_error:.4f} (n = {result.num_images:,} images); standard "
            f"error of a head's change at most {max(errors, default=0.0):.4f}"
        )

    def done(self, name: str) -> None:
        """Note that a figure is complete, with all of its files."""
        self.written.append(name)

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *unused: object) -> None:
        """Say what a brief output has kept to itself."""
        if self._brief and self.written:
            self._tell(f"Written to {self.folder}: {', '.join(self.written)}")
            if self._table is not None:
                self._tell(f"\n{summary.as_text(self._table, self._ablation)}\n")
