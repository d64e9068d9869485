"""The published tables, and which run belongs to which of their rows.

`published.json` holds every number that this package did not measure, with where it
stands, and for every row (a config file) the fields that make a run one of it:
`model` decides whether a run belongs to the row; a run that differs in `settings` or
in the published hyper-parameters (Table 4) belongs to it and is marked.
"""

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the published tables: what a run of it must and should have.

    Fields are dotted paths into the config, "model.attention.name" for example.
    """

    name: str  # of its config file
    label: str  # in the published table
    model: Mapping[str, Any]
    settings: Mapping[str, Any]
    protocols: tuple[Mapping[str, Any], ...]  # published hyper-parameters

    def matches(self, fields: Mapping[str, Any]) -> bool:
        """Whether a run with these config fields trains this network on CIFAR-10."""
        return fields.get("dataset.name") == "cifar10" and all(
            _value(fields, field) == value for field, value in self.model.items()
        )

    def differences(self, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """Where a run departs from the row: "batch_size 50 instead of 100", ...

        Of several published protocols the nearest counts. A field of the model that
        the row does not name is a difference, for nobody has said what it should be.
        """
        found = [
            f"{field} {_text(_value(fields, field))} instead of {_text(value)}"
            for field, value in self.settings.items()
            if _value(fields, field) != value
        ]
        named = self.model.keys() | self.settings.keys()
        found += [
            f"{field} {_text(value)}, of which nothing was published"
            for field, value in sorted(fields.items())
            if field.startswith("model.") and field not in named
        ]
        protocols = [_unlike(fields, protocol) for protocol in self.protocols]
        return (*min(protocols, key=len, default=()), *found)


def load() -> dict[str, Any]:
    """The content of `published.json`."""
    return _load()


@functools.cache
def _load() -> dict[str, Any]:
    folder = importlib.resources.files("attn_cnn_jax.results")
    return json.loads(folder.joinpath("published.json").read_text(encoding="utf-8"))


@functools.cache
def rows() -> dict[str, Row]:
    """The rows by the names of their config files, in the order of the data file."""
    content = load()
    hyper_parameters = content["tables"]["4"]
    made = {}
    for name, row in content["rows"].items():
        model: dict[str, Any] = {}
        for block in (*row.get("blocks", ()), None):
            model.update(row["model"] if block is None else content["blocks"][block])
        settings: dict[str, Any] = {}
        for block in ("common", *row.get("settings", ())):
            settings.update(content["settings"][block])
        protocols = tuple(
            {**hyper_parameters["common"], **protocol(line)}
            for line in hyper_parameters["lines"]
            if name in line["rows"]
        )
        model = {f"model.{field}": value for field, value in model.items()}
        made[name] = Row(name, _label(name), model, settings, protocols)
    return made


def find_row(fields: Mapping[str, Any]) -> Row | None:
    """The row that a run with these config fields belongs to, if any."""
    return next((row for row in rows().values() if row.matches(fields)), None)


def canonical(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without those that say what their absence says."""
    absent = load()["absent"]
    return {k: v for k, v in fields.items() if k not in absent or v != absent[k]}


def protocol(line: Mapping[str, Any]) -> dict[str, Any]:
    """The config fields of a line of the published Table 4."""
    return {k: v for k, v in line.items() if k not in ("label", "rows", "source")}


def _label(name: str) -> str:
    tables = load()["tables"]
    lines = [line for number in "123" for line in tables[number]["lines"]]
    return next((line["label"] for line in lines if line["row"] == name), name)


def _value(fields: Mapping[str, Any], field: str) -> Any:
    return fields.get(field, load()["absent"].get(field))


def _unlike(fields: Mapping[str, Any], protocol: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    for field, value in protocol.items():
        ours = _value(fields, field)
        same = ours == value
        if field == "schedule.name":
            same = schedule_kind(fields) == value
        if not same:
            found.append(f"{field} {_text(ours)} instead of {_text(value)}")
    return tuple(found)


def schedule_kind(fields: Mapping[str, Any]) -> str:
    """The schedule's kind as Table 4 names it: all cosines are "cosine"."""
    return str(fields.get("schedule.name", "")).partition("_")[0]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    text = "absent" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
