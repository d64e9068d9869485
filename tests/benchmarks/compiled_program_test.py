"""Products of mixed dtype in a traced program, and what the command refuses."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from attn_cnn_jax.errors import UserError
from benchmarks import compiled_cost, compiled_program, compiled_summary

ROOT = Path(__file__).parent.parent.parent
WIDE = jax.ShapeDtypeStruct((4, 4), jnp.float32)
NARROW = jax.ShapeDtypeStruct((4, 4), jnp.bfloat16)


def mixed(function, *args) -> int:
    return compiled_program.mixed_products(jax.make_jaxpr(function)(*args))


def product(a, b):
    return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())))


def test_a_product_of_two_dtypes_is_counted():
    assert mixed(product, WIDE, NARROW) == 1
    assert mixed(product, WIDE, WIDE) == mixed(product, NARROW, NARROW) == 0


def test_an_addition_of_two_dtypes_is_no_product():
    assert mixed(lambda a, b: a + b, WIDE, NARROW) == 0


def test_products_inside_other_programs_are_counted():
    @jax.custom_vjp
    def own(a, b):
        return product(a, b)

    own.defvjp(lambda a, b: (product(a, b), (a, b)), lambda kept, y: kept)

    def function(a, b):
        a = jax.jit(product)(a, b).astype(jnp.float32)
        a, _ = jax.lax.scan(lambda c, _: (product(c, b) * 1.0, None), a, length=3)
        a = jax.lax.cond(a.sum() > 0, product, lambda a, b: a, a, b)
        return own(jax.checkpoint(product)(a, b), b)

    assert mixed(function, WIDE, NARROW) == 5


def test_the_other_half_of_a_gradient_is_counted():
    """The cotangent of a float32 result of 16-bit operands meets the 16-bit one."""

    def function(a, b):
        dims = (((1,), (0,)), ((), ()))
        wide = jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)
        return jnp.sum(wide**2)

    assert mixed(function, NARROW, NARROW) == 0
    assert mixed(jax.grad(function, argnums=(0, 1)), NARROW, NARROW) == 2


def test_a_summary_adds_up():
    gpu = compiled_cost.GPUS["h200"]
    kernels = [
        compiled_cost.Kernel("layer_0/dot", "gemm", 10**9, 79 * 10**9, False, 0, 2),
        compiled_cost.Kernel("layer_1/dot", "gemm", 10**9, 10**9, True, 0, 1),
    ]
    row = compiled_summary.summary(
        kernels, gpu, compute_dtype="bfloat16", batch_size=100, num_images=50_000
    )
    assert row["kernels"] == 3
    assert row["tflop"] == pytest.approx(0.159)
    assert row["tflop_float32"] == pytest.approx(0.001)
    assert row["gigabytes"] == pytest.approx(3.0)
    assert row["ideal_ms"] == pytest.approx(1e3 * 3 / 4300)
    assert row["mid_ms"] == pytest.approx(1e3 * 3 / 4300 / 0.8 + 3 * 1.5e-3)
    seconds = row["mid_ms"] / 1e3
    assert row["mfu_mid"] == pytest.approx(0.159 / 790 / seconds)
    assert row["images_per_second"] == pytest.approx(100 / seconds)
    assert row["minutes"] == pytest.approx(300 * 500 * seconds / 60)
    lines = compiled_summary.breakdown(kernels, gpu, 5)
    assert len(lines) == 2 and "layer_#/dot" in lines[1] and "100.0%" in lines[1]


def test_the_measure_of_a_float32_row_is_what_float32_can_reach():
    gpu = compiled_cost.GPUS["h200"]
    kernel = compiled_cost.Kernel("dot", "gemm", 10, 10**12, True, 0, 1)
    row = compiled_summary.summary(
        [kernel], gpu, compute_dtype="float32", batch_size=100, num_images=50_000
    )
    assert row["mfu_of_tflops"] == 395
    assert row["mfu_mid"] == pytest.approx(0.7, rel=1e-3)


def test_a_line_stands_under_its_heading():
    kernel = compiled_cost.Kernel("dot", "gemm", 10, 10**12, False, 0, 477)
    gpu = compiled_cost.GPUS["h200"]
    row = {
        "config": "resnet18",
        "compute_dtype": "bfloat16",
        "mixed_products": 12,
        "temporary_gib": 0.5,
        "compile_seconds": 13.4,
        **compiled_summary.summary(
            [kernel], gpu, compute_dtype="bfloat16", batch_size=100, num_images=50_000
        ),
    }
    heading, line = compiled_summary.heading(), compiled_summary.as_line(row)
    assert len(heading) == len(line)
    for title, text in (("kernels", "477"), ("mixed", "12"), ("temp. GiB", "0.50")):
        end = heading.index(title) + len(title)
        assert line[:end].endswith(" " + text)


def test_packages_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="requirements-compiled.txt"):
        compiled_program.target_mesh("h200")


def test_every_gpu_is_described_for_the_compiler_and_for_the_estimate():
    described = {path.stem for path in (ROOT / "benchmarks").glob("*.txtpb")}
    assert described == set(compiled_cost.GPUS)


@pytest.mark.parametrize(
    "flag,complaint",
    [
        ("--configs=nope", "there is no configs/nope.py"),
        ("--compute_dtypes=int8", "compute_dtype"),
        ("--target=abacus", "abacus"),
    ],
)
def test_a_mistake_is_a_line_and_status_2(flag, complaint):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compiled", flag],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert complaint in done.stderr and len(done.stderr.splitlines()) == 1
