"""The layers of every family are found, in order, by their names."""

import numpy as np
import pytest

from attn_cnn_jax.models.layers import sown_layers


def names_and_values(tree, model="self_attention") -> list:
    return [(name, int(array[0])) for name, array in sown_layers(tree, model)]


def sown(*values: int) -> dict:
    return {"attention": {"attention": tuple(np.array([value]) for value in values)}}


def test_blocks_come_in_the_order_of_their_numbers():
    tree = {f"block_{i}": sown(i) for i in (10, 9, 0, 2, 1)}
    tree["stem"] = {"features": (np.zeros(1),)}
    wanted = [("layer 1", 0), ("layer 2", 1), ("layer 3", 2), ("layer 10", 9)]
    assert names_and_values(tree) == [*wanted, ("layer 11", 10)]


def test_a_shared_block_is_as_many_layers_as_it_has_passes():
    assert names_and_values({"block": sown(5, 3, 4)}) == [
        ("layer 1", 5),
        ("layer 2", 3),
        ("layer 3", 4),
    ]
    assert names_and_values({"block": sown(5)}) == [("layer 1", 5)]


def test_san_is_named_by_stage_and_block():
    tree = {
        "stage_1_block_0": {"sam": {"attention": (np.array([2]),)}},
        "stage_0_block_1": {"sam": {"attention": (np.array([1]),)}},
        "stage_0_block_0": {"sam": {"attention": (np.array([0]),)}},
    }
    assert names_and_values(tree, "san10") == [
        ("stage 1 block 1", 0),
        ("stage 1 block 2", 1),
        ("stage 2 block 1", 2),
    ]


def test_a_pass_of_the_hierarchical_san_is_its_last_block():
    tree = {"block_0": sown(0, 1, 2, 3), "block_1": sown(10, 11, 12, 13)}
    assert names_and_values(tree, "san_hierarchical") == [
        ("pass 1", 10),
        ("pass 2", 11),
        ("pass 3", 12),
        ("pass 4", 13),
    ]


def test_of_several_sweeps_the_last_is_kept():
    tree = {"block_0": sown(0, 1, 2, 3), "block_1": sown(10, 11, 12, 13)}
    twice = sown_layers(tree, "san_hierarchical", num_sweeps=2)
    assert [(name, int(a[0])) for name, a in twice] == [("pass 1", 11), ("pass 2", 13)]


@pytest.mark.parametrize("model", ["resnet18", "san_hierarchical"])
def test_without_attention_there_are_no_layers(model):
    assert sown_layers({}, model) == []
