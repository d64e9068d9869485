"""Maps are what the layers sow, for every image, whatever the size of the batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from ml_collections import ConfigDict

from attn_cnn_jax import checkpoint, data
from attn_cnn_jax import run as runs
from attn_cnn_jax.analysis.attention_maps import (
    LazyMaps,
    MapBatches,
    attention_maps,
)
from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.covered_offsets import tokens_to_grid
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.run import Run


def direct(run: Run, images: np.ndarray) -> list[np.ndarray]:
    """What the blocks sow when the model is applied here, all images at once."""
    pixels = data.normalize(images, run.dataset.mean, run.dataset.std)
    apply = jax.jit(
        lambda v, x: run.model.apply(v, x, train=False, mutable=["intermediates"])
    )
    _, seen = apply(run.variables, pixels)
    blocks = seen["intermediates"]
    return [
        np.asarray(blocks[f"block_{i}"]["attention"]["attention"][0]) for i in range(2)
    ]


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_content_maps_equal_a_direct_forward_pass(make_run, batch_size):
    run = make_run("learned_w_content")
    images = run.dataset.test.images[10:17]
    maps = attention_maps(run.workdir, images, batch_size=batch_size)
    for probs, wanted in zip(maps.probs, direct(run, images), strict=True):
        assert probs.shape == (7, 4, 4, 4, 4, 4) and probs.dtype == np.float32
        np.testing.assert_allclose(probs, wanted, rtol=1e-5, atol=1e-7)
        assert np.ptp(probs, axis=0).max() > 1e-3  # the images do matter
    assert maps.kind == "grid" and maps.class_mass is None and maps.softmaxed
    assert maps.layers == ("layer 1", "layer 2")
    assert maps.run == "tiny_seed3" and maps.step == 0 and maps.epoch == 0
    assert maps.names[2] == "image 3"
    np.testing.assert_array_equal(maps.images, images)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_position_only_maps_are_one_for_all_images(make_run, batch_size):
    run = make_run("quadratic_nonisotropic")
    images = run.dataset.test.images[:5]
    maps = attention_maps(run, images, batch_size=batch_size)
    for probs, wanted in zip(maps.probs, direct(run, images), strict=True):
        assert probs.shape == (1, 4, 4, 4, 4, 4)
        np.testing.assert_allclose(probs, wanted, rtol=1e-5, atol=1e-7)
    assert len(maps.images) == 5


def test_batches_hold_no_more_than_they_should(make_run):
    run = make_run("learned_w_content")
    images, names = run.dataset.test.images[:11], [f"name {i}" for i in range(11)]
    batches = MapBatches(run, images, names=names, batch_size=4)
    assert len(batches) == 3
    for _ in range(2):  # and again
        parts = list(batches)
        assert [len(part.images) for part in parts] == [4, 4, 3]
        assert max(len(p) for part in parts for p in part.probs) == 4
        assert [name for part in parts for name in part.names] == names
        whole = np.concatenate([part.probs[1] for part in parts])
        np.testing.assert_allclose(whole, direct(run, images)[1], rtol=1e-5, atol=1e-7)


def test_the_default_batch_fits_into_256_mib(make_run):
    """16 heads x 6 layers at 16 x 16 are 25 MB an image: 10 images a batch."""
    run = make_run("learned_w_content")
    run.config.eval_batch_size = 100
    shape = jax.ShapeDtypeStruct((2, 16, 16, 16, 16, 16), jnp.float32)
    run.layers = [(f"layer {i + 1}", shape) for i in range(6)]
    images = run.dataset.test.images[:50]
    assert MapBatches(run, images).batch_size == 10
    run.layers = run.layers[:1]  # 64 images fit into the memory of the maps
    run.config.eval_batch_size = 20
    assert MapBatches(run, images).batch_size == 20


def test_position_only_maps_are_computed_once(make_run, monkeypatch):
    run = make_run("quadratic_isotropic")
    calls = []
    capture = run.capture
    run.capture = lambda *batch: calls.append(len(batch[1])) or capture(*batch)
    images = run.dataset.test.images[:9]
    assert len(list(MapBatches(run, images, batch_size=2))) == 5
    assert calls == [1]


def test_at_is_the_run_at_another_checkpoint(make_run):
    run = make_run("quadratic_isotropic")
    config, variables = run.config, jax.tree.map(lambda a: 1.5 * a, run.variables)
    from attn_cnn_jax.checkpoint.folder import save_variables

    save_variables(run.workdir / "snapshots" / "28", config, 28, variables)
    later = run.at(28)
    assert (later.step, later.epoch) == (28, 2.0)  # of 14 steps
    assert later.dataset is run.dataset
    before, after = (
        attention_maps(r, run.dataset.test.images[:1]).probs[0] for r in (run, later)
    )
    np.testing.assert_allclose(
        after, direct(later, run.dataset.test.images[:1])[0], rtol=1e-5, atol=1e-7
    )
    assert np.abs(before - after).max() > 1e-2
    lazy = LazyMaps([run, later], choose_images(run.dataset, ["4", "1"]))
    for _ in range(2):  # in their order, and each again
        found = [(maps.step, maps.names[0], maps.probs[0]) for maps in lazy]
        assert [step for step, *_ in found] == [0, 28] and len(lazy) == 2
        assert all(name.startswith("test image 4") for _, name, _ in found)
        np.testing.assert_array_equal(found[1][2], after)


@pytest.mark.parametrize(
    "images, message",
    [
        (np.zeros((2, 9, 8, 1), np.uint8), r"\[2, 9, 8, 1\].*takes uint8 \[B, 8, 8, 1"),
        (np.zeros((0, 8, 8, 1), np.uint8), "B at least 1"),
    ],
)
def test_images_of_another_shape_are_refused(make_run, images, message):
    with pytest.raises(UserError, match=message):
        attention_maps(make_run("quadratic_isotropic"), images)


def test_a_name_for_each_image(make_run):
    run = make_run("quadratic_isotropic")
    with pytest.raises(UserError, match="as many names"):
        attention_maps(run, run.dataset.test.images[:2], names=["one"])
    with pytest.raises(UserError, match="a batch of 0 images"):
        attention_maps(run, run.dataset.test.images[:2], batch_size=0)


def test_a_network_without_attention_says_so(make_run):
    run = make_run("resnet")
    with pytest.raises(UserError, match="tiny_seed3 is a resnet10.*without attention"):
        attention_maps(run, run.dataset.test.images[:2])


class _Sows(nn.Module):
    """Stands for a network of another family: sows `probs` of the images' mean."""

    def sown(self, images):
        raise NotImplementedError

    @nn.compact
    def __call__(self, images, *, train: bool):
        _Block(name=self.block)(self.sown(images))
        return images[:, 0, 0, :1] + self.param("bias", nn.initializers.zeros, (1, 1))


class _Block(nn.Module):
    @nn.compact
    def __call__(self, probs):
        self.sow("intermediates", "attention", probs)


class _Tokens(_Sows):
    block = "block_0"

    def sown(self, images):  # 16 patches and a class token
        scores = jnp.arange(17 * 17 * 2.0).reshape(1, 2, 17, 17) % 7
        scores = scores * images.mean(axis=(1, 2, 3))[:, None, None, None]
        return jax.nn.softmax(scores)


class _Taps(_Sows):
    block = "stage_0_block_0"

    def sown(self, images):
        taps = jnp.arange(9 * 4.0).reshape(1, 1, 1, 9, 4) - 20
        return images[..., None] * taps


@pytest.fixture
def make_fake(tiny_config, tmp_path, monkeypatch):
    def make(module, **fields) -> Run:
        config = tiny_config()
        config.model = ConfigDict(fields)
        monkeypatch.setattr(runs.models, "build", lambda *_: module)
        variables = {"params": {"bias": np.zeros((1, 1), np.float32)}}
        checkpoint.write_variables(tmp_path / "fake", config, variables)
        return Run(tmp_path / "fake")

    return make


@pytest.mark.parametrize("batch_size", [2, 3])
def test_tokens_become_a_grid(make_fake, batch_size):
    run = make_fake(_Tokens(), name="vit", patch_size=2)
    images = run.dataset.test.images[:3]
    maps = attention_maps(run, images, batch_size=batch_size)
    pixels = data.normalize(images, run.dataset.mean, run.dataset.std)
    wanted = np.asarray(_Tokens().sown(pixels))
    assert maps.kind == "grid" and maps.class_mass is not None
    assert maps.probs[0].shape == (3, 2, 4, 4, 4, 4)
    np.testing.assert_allclose(
        maps.probs[0].reshape(3, 2, 16, 16), wanted[:, :, 1:, 1:], rtol=1e-5
    )
    np.testing.assert_allclose(
        maps.class_mass[0].reshape(3, 2, 16), wanted[:, :, 1:, 0], rtol=1e-5
    )


@pytest.mark.parametrize("attention", ["patchwise", "pairwise"])
def test_taps_of_san(make_fake, attention):
    run = make_fake(_Taps(), name="san10", attention=attention)
    images = run.dataset.test.images[:3]
    maps = attention_maps(run, images)
    assert maps.kind == "taps" and maps.class_mass is None
    assert maps.layers == ("stage 1 block 1",)
    assert maps.softmaxed == (attention == "pairwise")
    pixels = data.normalize(images, run.dataset.mean, run.dataset.std)
    np.testing.assert_allclose(maps.probs[0], _Taps().sown(pixels), rtol=1e-5)


def test_the_class_token_is_dropped_and_its_mass_kept():
    grid, tokens = (2, 3), 7
    probs = np.arange(2 * 1 * tokens * tokens, dtype=np.float32)
    probs = probs.reshape(2, 1, tokens, tokens)
    on_grid, mass = tokens_to_grid(probs, grid)
    assert on_grid.shape == (2, 1, 2, 3, 2, 3) and mass is not None
    # Query (1, 0) is token 1 + 3, key (0, 2) is token 1 + 2.
    assert on_grid[1, 0, 1, 0, 0, 2] == probs[1, 0, 4, 3]
    assert mass[1, 0, 1, 0] == probs[1, 0, 4, 0]


def test_without_a_class_token_nothing_is_dropped():
    probs = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    on_grid, mass = tokens_to_grid(probs, (2, 3))
    assert mass is None and on_grid[0, 0, 1, 0, 0, 2] == probs[0, 0, 3, 2]
    with pytest.raises(ValueError, match="6 tokens are not a grid of 2 x 2"):
        tokens_to_grid(probs, (2, 2))
