"""What the JSON of a checkpoint names is not imported, and leads nowhere."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attn_cnn_jax import checkpoint
from attn_cnn_jax.errors import UserError

ITEMS, TREE = "_CHECKPOINT_METADATA", "variables/_METADATA"
ARRAYS = {"params": {"a": np.ones((4, 4), np.float32), "b": np.arange(9.0)}}


def _types(content: dict[str, Any]) -> None:
    for leaf in content["tree_metadata"].values():
        leaf["value_metadata"]["value_type"] = "payload.Handler"


def _key(key: str, kind: int) -> Callable[[dict[str, Any]], object]:
    def change(content: dict[str, Any]) -> None:
        leaf = content["tree_metadata"].pop("('params', 'a')")
        leaf["key_metadata"][1] = {"key": key, "key_type": kind}
        content["tree_metadata"][f"('params', {key!r})"] = leaf

    return change


NAMED_TUPLE = {
    "category": "namedtuple",
    "module_name": "payload",
    "class_name": "Handler",
    "entries": [],
}
CHANGES: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "a handler": (
        ITEMS,
        lambda content: content["item_handlers"].update(variables="payload.Handler"),
    ),
    "handlers": (
        ITEMS,
        lambda content: content.update(item_handlers="payload.Handler"),
    ),
    "a type": (TREE, _types),
    "a tuple": (TREE, lambda content: content.update(value_metadata_tree=NAMED_TUPLE)),
    "a path": (TREE, _key("../../../../../victim", 2)),
    "a long list": (TREE, _key("1000000000", 1)),
    "another store": (TREE, lambda content: content.update(use_ocdbt=False)),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A workdir with a checkpoint of small arrays."""
    from attn_cnn_jax import config as config_lib

    config = config_lib.base_config()
    config.model = config_lib.self_attention("quadratic_isotropic")
    workdir = tmp_path_factory.mktemp("saved")
    checkpoint.write_variables(workdir, config, ARRAYS)
    return workdir


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_that_a_checkpoint_names_is_imported(
    change, saved, tmp_path, monkeypatch
):
    (tmp_path / "payload.py").write_text("open('ran', 'w')\nclass Handler: pass")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, tmp_path / "run")
    file, alter = CHANGES[change]
    path = tmp_path / "run" / "checkpoints" / "0" / file
    content = json.loads(path.read_text())
    alter(content)
    path.write_text(json.dumps(content))
    try:
        found = checkpoint.load(tmp_path / "run").variables
    except UserError as error:
        assert "is damaged" in str(error) and "\n" not in str(error)
    else:
        for name, array in ARRAYS["params"].items():
            np.testing.assert_array_equal(found["params"][name], array)
    assert not os.path.exists("ran") and "payload" not in sys.modules


def test_arrays_larger_than_any_memory_are_refused(saved, tmp_path):
    """As the store itself says it, whose own checksums are right."""
    tensorstore = pytest.importorskip("tensorstore")
    shutil.copytree(saved, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "0" / "variables"
    base = {"driver": "ocdbt", "base": f"file://{folder}/"}
    store = tensorstore.KvStore.open(base).result()
    for shape in ([10**6, 10**6], [40_000, 40_000]):
        content = json.loads(store.read("params.a/zarr.json").result().value)
        content["shape"] = shape
        store.write("params.a/zarr.json", json.dumps(content)).result()
        with pytest.raises(
            UserError, match="is damaged: (Unable to allocate|NOT_FOUND)"
        ):
            checkpoint.load(tmp_path / "run")
