"""The traced training step of every config: the products that it is made of."""

import importlib.util
from pathlib import Path

import jax
import pytest

from attn_cnn_jax import parallel
from benchmarks.compiled_program import mixed_products, trace_step

FILES = sorted((Path(__file__).parent.parent / "configs").glob("*.py"))


def traced(path, devices=1, **model_fields):
    """The program of a config's training step."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config().copy_and_resolve_references()
    config.model.update(model_fields)
    return trace_step(config, parallel.make_mesh(jax.devices()[:devices])).jaxpr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_product_is_of_two_dtypes(path):
    assert mixed_products(traced(path, compute_dtype="bfloat16")) == 0


@pytest.mark.parametrize("row", ["quadratic_isotropic", "learned_w_content"])
def test_there_is_no_loop_over_heads(row):
    (path,) = [path for path in FILES if path.stem == row]
    counts = {
        str(traced(path, num_heads=heads, num_layers=1)).count("= dot_general[")
        for heads in (2, 9)
    }
    assert len(counts) == 1 and counts.pop() > 10


@pytest.mark.parametrize("devices, loops", [(1, True), (2, False)])
def test_images_take_turns_on_one_cpu_and_not_on_several(devices, loops):
    (path,) = [path for path in FILES if path.stem == "quadratic_isotropic"]
    assert ("scan[" in str(traced(path, devices, num_layers=1))) is loops
