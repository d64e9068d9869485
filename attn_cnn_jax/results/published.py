"""The published tables, and which run belongs to which of their rows.

`published.json` holds every number that this package did not measure, its label and
where it stands. What a run of a row has to be is said by the row's config file alone.
"""

import dataclasses
import functools
import importlib.resources
import json
from typing import Any

import jax
from ml_collections import ConfigDict

from attn_cnn_jax import config as config_lib
from attn_cnn_jax import data, models


@dataclasses.dataclass(frozen=True)
class Row:
    """A published row, trained in one of the ways in which it was published."""

    config_name: str  # of its file, with the option of the way: "resnet18:cosine"
    config: ConfigDict

    @property
    def name(self) -> str:
        """The name of the config file, which is that of the row."""
        return self.config_name.partition(":")[0]

    @property
    def label(self) -> str:
        """The name of the row in the first published table that it stands in."""
        tables = load()["tables"]
        lines = [line for number in "123" for line in tables[number]["lines"]]
        labels = (line["label"] for line in lines if line["row"] == self.name)
        return next(labels, self.name)

    def differences(self, config: ConfigDict) -> tuple[str, ...]:
        """Return where a run departs from the row: "batch_size 50 instead of 100".

        Every field counts but the seed and those that change no number.
        """
        return tuple(
            f"{field} {_text(ours)} instead of {_text(published)}"
            for field, (published, ours) in config_lib.changes(
                self.config, config
            ).items()
            if field != "seed"
        )


@functools.cache
def load() -> dict[str, Any]:
    """Return the content of `published.json`."""
    file = importlib.resources.files("attn_cnn_jax.results") / "published.json"
    return json.loads(file.read_text(encoding="utf-8"))


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return every row in every way it was published, as Table 4 lists them."""
    lines = load()["tables"]["4"]["lines"]
    names = [name for line in lines for name in line["configs"]]
    return tuple(Row(name, load_config(name)) for name in names)


def find_row(config: ConfigDict, parameters: int | None) -> Row | None:
    """Return the row that a run belongs to, if any.

    Data, model and attention have the row's names and the network its number of
    `parameters`. Of several such rows the nearest counts: that with fewest differences.
    """
    alike = [
        row
        for row in rows()
        if data_and_network(config) == data_and_network(row.config)
        and parameters == count_parameters(row.config)
    ]
    return min(alike, key=lambda row: len(row.differences(config)), default=None)


def data_and_network(config: ConfigDict) -> tuple[str, str, str]:
    """Return the names of dataset, model and attention; "" where there is none."""
    fields = config_lib.flatten(config)
    attention = fields.get("model.attention.name", fields.get("model.attention", ""))
    data_name, model_name = fields.get("dataset.name"), fields.get("model.name", "")
    return str(data_name), str(model_name), str(attention)


def count_parameters(config: ConfigDict) -> int | None:
    """Return the number of trained values; None where counting takes the run's data.

    No array is made. What is wrong with the model is raised as it comes.
    """
    if (entry := data.DATASETS.get(str(config.dataset.name))) is None:
        return None
    fields = config_lib.to_json(config.model)
    return _count(fields, entry.image_shape, entry.num_classes)


@functools.lru_cache(maxsize=256)
def _count(model_json: str, image_shape: tuple[int, int, int], num_classes: int) -> int:
    fields = config_lib.from_dict(json.loads(model_json))
    model = models.build(fields, num_classes)
    variables = jax.eval_shape(
        lambda: models.initial_variables(model, jax.random.key(0), image_shape)
    )
    return models.count_parameters(variables)


def load_config(name: str) -> ConfigDict:
    """Return the config of a row's file, "resnet18:cosine" for example.

    Raises a `UserError` where there is no such file, or the file has no such option.
    """
    stem, _, options = name.partition(":")
    return config_lib.read_file(config_lib.folder() / f"{stem}.py", options)


def _text(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    text = text or "empty"
    return text if len(text) <= 100 else f"{text[:97]}..."
