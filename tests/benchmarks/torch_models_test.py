"""PyTorch's networks compute what ours do, and count as many parameters."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attn_cnn_jax import models
from attn_cnn_jax.config import resnet, san, self_attention, vit
from attn_cnn_jax.interop import from_state

torch = pytest.importorskip("torch", reason="torch is for benchmarks/: make peers")
torch_models = importlib.import_module("benchmarks.torch_models")

PARAMETERS = {
    "resnet18": 11_173_962,
    "quadratic_isotropic": 12_086_844,
    "quadratic_nonisotropic": 12_087_006,
    "learned_wo_content": 12_278_682,
    "learned_w_content": 29_484_282,
    "san_pairwise": 3_737_056,
    "san_patchwise": 3_851_142,
    "vit": 37_394_506,
}


def small(config_model, **fields):
    config_model.update(compute_dtype="float64", **fields)
    return config_model


def attention(name):
    model = small(self_attention(name), width=12, mlp_dim=10, num_layers=2)
    model.update(num_heads=3, dropout_rate=0.0, attention={"dropout_rate": 0.0})
    return model, (6, 8, 3)


def small_san(kind):
    sizes = dict(widths=(32, 64), num_blocks=(1, 2), kernel_sizes=(3, 3))
    return small(san(kind), **sizes), (12, 16, 3)


def small_vit():
    sizes = dict(stem_width=4, width=8, num_heads=3, head_dim=5, mlp_dim=6)
    model = small(vit(), num_layers=2, attention_dropout_rate=0.0, **sizes)
    return model, (6, 8, 3)


SMALL = {
    "resnet18": lambda: (small(resnet("resnet18"), width=4), (16, 16, 3)),
    "quadratic_isotropic": lambda: attention("quadratic_isotropic"),
    "quadratic_nonisotropic": lambda: attention("quadratic_nonisotropic"),
    "learned_wo_content": lambda: attention("learned_wo_content"),
    "learned_w_content": lambda: attention("learned_w_content"),
    "san_pairwise": lambda: small_san("pairwise"),
    "san_patchwise": lambda: small_san("patchwise"),
    "vit": small_vit,
}


def both_sides(name, fused=None):
    """The PyTorch network, ours with its variables, images, and ours' class token."""
    config_model, shape = SMALL[name]()
    torch.manual_seed(0)
    theirs = torch_models.build(config_model.to_dict(), 10, shape, fused).double()
    with torch.no_grad():  # no norm is one that has just been made
        for tensor in theirs.state_dict().values():
            if tensor.is_floating_point():
                tensor += 0.1 * torch.rand_like(tensor)
    images = torch.randn(5, shape[-1], *shape[:2], dtype=torch.float64)
    arguments, token = (images,), {}
    if name == "vit":
        patch = torch.rand(5, config_model.stem_width, 2, 2, dtype=torch.float64)
        arguments = images, patch.flatten(1)  # (channel, row, column)
        token = {"class_token": patch.permute(0, 2, 3, 1).flatten(1).numpy()}
    ours = models.build(config_model, 10)
    return theirs, arguments, ours, config_model, token


def arrays(module, gradients=False):
    """The state of a module; with its gradients in place of its parameters."""
    state = {n: t.detach().numpy().copy() for n, t in module.state_dict().items()}
    if gradients:
        for name, tensor in module.named_parameters():
            gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            state[name] = gradient.numpy()
    return state


def last(images):
    return jnp.asarray(images.numpy().transpose(0, 2, 3, 1))


def assert_close(actual, expected):
    leaves = map(np.asarray, jax.tree.leaves(expected))
    scale = max((np.abs(leaf).max() for leaf in leaves), default=0.0)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11 * scale),
        actual,
        expected,
    )


def check_logits(name, fused=None):
    theirs, arguments, ours, config_model, token = both_sides(name, fused)
    theirs.eval()
    with jax.enable_x64(True):
        token = jax.tree.map(jnp.asarray, token)
        variables = from_state(arrays(theirs), config_model)
        logits = ours.apply(variables, last(arguments[0]), train=False, **token)
        assert_close(theirs(*arguments).detach().numpy(), np.asarray(logits))


def check_training(name, fused=None):
    """Gradients of the loss, and the running statistics behind the step."""
    theirs, arguments, ours, config_model, token = both_sides(name, fused)
    labels = np.arange(5) % 3
    theirs.train()
    with jax.enable_x64(True):
        token = jax.tree.map(jnp.asarray, token)
        variables = from_state(arrays(theirs), config_model)
        others = {k: v for k, v in variables.items() if k != "params"}

        def mean_loss(params):
            logits, after = ours.apply(
                {"params": params, **others},
                last(arguments[0]),
                train=True,
                mutable=list(others),
                rngs={"dropout": jax.random.key(0)},
                **token,
            )
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return loss.mean(), after

        grads, after = jax.jit(jax.grad(mean_loss, has_aux=True))(variables["params"])
        logits = theirs(*arguments)
        torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).backward()
        expected = from_state(arrays(theirs, gradients=True), config_model)
        assert_close(grads, expected.pop("params"))
        assert_close(dict(after), expected)


@pytest.mark.parametrize("name", SMALL)
def test_logits_are_ours(name):
    check_logits(name)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_and_running_statistics_are_ours(name):
    check_training(name)


@pytest.mark.parametrize("name", ["learned_w_content", "vit"])
def test_a_fused_attention_computes_the_same(name):
    calls = []

    def fused(*args, **kwargs):
        calls.append(kwargs)
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)

    check_training(name, fused)
    assert len(calls) == 2  # layers


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_sizes_have_our_number_of_parameters(name):
    module = importlib.import_module(f"configs.{name}")
    model = module.get_config().model.to_dict()
    with torch.device("meta"):
        network = torch_models.build(model, 10, (32, 32, 3))
    assert sum(p.numel() for p in network.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize(
    "config_model, message",
    [
        (small(self_attention("multi_head")), "multi_head"),
        (small(self_attention("quadratic_isotropic"), share_weights=True), "share_"),
        (small(vit("standard")), "activation='gelu' alone"),
        (san("pairwise", "san10"), "san10"),
    ],
)
def test_what_is_not_there_is_refused(config_model, message):
    with pytest.raises(ValueError, match=message):
        torch_models.build(config_model.to_dict(), 10, (32, 32, 3))


def test_each_image_has_a_mask_of_its_own_where_published_so():
    """Quadratic attention drops alike in the whole batch, learned attention not."""
    for name, alike in {
        "quadratic_isotropic": True,
        "learned_wo_content": False,
    }.items():
        model, shape = attention(name)
        model.attention.dropout_rate = 0.5
        network = torch_models.build(model.to_dict(), 10, shape).train()
        image = torch.randn(1, 3, *shape[:2]).expand(2, -1, -1, -1)
        first, second = network(image)
        assert torch.allclose(first, second) == alike
