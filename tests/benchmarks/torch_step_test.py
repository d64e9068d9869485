"""PyTorch's training step: what decays, what changes, what its products cost."""

import importlib

import pytest

torch = pytest.importorskip("torch", reason="torch is for benchmarks/: make peers")
torch_step = importlib.import_module("benchmarks.torch_step")


@pytest.fixture
def step(tiny_config):
    config = tiny_config()
    config.optimizer.nesterov = True
    return torch_step.Step(
        {
            "variant": "published",
            "config": config.to_dict(),
            "batch_size": 3,
            "image_shape": (8, 8, 3),
            "num_classes": 10,
            "platform": "cpu",
        }
    )


def test_a_step_updates_all_parameters(step):
    before = {n: p.detach().clone() for n, p in step.model.named_parameters()}
    step()
    for name, parameter in step.model.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert step.peak_bytes() is None and step.facts()["torch"] == torch.__version__


def test_the_optimizer_is_the_configs(step):
    names = {p: name for name, p in step.model.named_parameters()}
    decays, excluded = step.optimizer.param_groups
    assert {names[p].rsplit("_", 1)[-1] for p in excluded["params"]} == {
        "centers",
        "spreads",
    }
    assert (decays["weight_decay"], excluded["weight_decay"]) == (1e-4, 0.0)
    assert len(decays["params"]) + len(excluded["params"]) == len(names)
    assert decays["momentum"] == 0.9 and decays["nesterov"]


def test_the_products_of_a_published_step_are_counted():
    """4.50 G multiply-adds an image forward, nearly twice that backward."""
    model = importlib.import_module("configs.quadratic_isotropic").get_config().model
    arguments = model.to_dict(), 10, (32, 32, 3)
    flops = torch_step.training_flops(*arguments, batch_size=100)
    assert flops == pytest.approx(100 * 3 * 2 * 4.50e9, rel=0.01)


def test_a_kernel_that_is_not_installed_is_named():
    with pytest.raises(ValueError, match="ffpa-attn"):
        torch_step._kernel("ffpa")
