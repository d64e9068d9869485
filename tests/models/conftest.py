"""Fixtures for the tests of the models."""

import functools

import jax
import pytest


@pytest.fixture(autouse=True)
def exact_products():
    """Matrix products in the precision of their type on every device."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def quick_jit():
    """`jax.jit` that compiles fast, for programs that run once on small arrays."""
    options = {"xla_backend_optimization_level": 0}
    return functools.partial(jax.jit, compiler_options=options)
