"""Files of weights, and the command that makes a workdir of one."""

import re
import subprocess
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from attn_cnn_jax import checkpoint, models
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.interop.state_files import read_state

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "quadratic_isotropic.npz"


def random_state():
    """Some tensors by name."""
    rng = np.random.default_rng(0)
    shapes = {"classifier.weight": (2, 3), "classifier.bias": (2,)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def test_files_are_read_without_running_anything(tmp_path):
    state = random_state()
    np.savez(tmp_path / "plain.npz", **state)
    prefixed = {f"state/{name}": value for name, value in state.items()}
    np.savez(tmp_path / "prefixed.npz", input=np.zeros(3), **prefixed)
    for name in ("plain", "prefixed"):
        read = read_state(tmp_path / f"{name}.npz")
        assert set(read) == set(state)
        assert all(np.array_equal(read[k], state[k]) for k in state)
    np.savez(tmp_path / "pickled.npz", weights=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UserError, match="pickled.npz cannot be read"):
        read_state(tmp_path / "pickled.npz")


@pytest.mark.parametrize(
    "name, match",
    [
        ("absent.npz", "absent.npz cannot be read"),
        ("broken.npz", "broken.npz cannot be read: File is not a zip file"),
        ("state.bin", "not one of .npz, .safetensors, .pt, .pth"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, match):
    if not name.startswith("absent"):
        (tmp_path / name).write_bytes(b"no weights")
    with pytest.raises(UserError, match=match):
        read_state(tmp_path / name)


def test_safetensors_are_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    state = random_state()
    safetensors.save_file(state, tmp_path / "state.safetensors")
    read = read_state(tmp_path / "state.safetensors")
    assert set(read) == set(state)
    assert all(np.array_equal(read[name], state[name]) for name in state)


@pytest.mark.parametrize(
    "package, suffix",
    [
        ("torch", ".pt"),
        ("torch", ".pth"),
        ("torch", ".ckpt"),
        ("safetensors", ".safetensors"),
    ],
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, package, suffix):
    for module in (package, f"{package}.numpy"):
        monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / f"state{suffix}"
    path.touch()
    with pytest.raises(UserError, match=f"need the package {package}: pip install"):
        read_state(path)


def test_torch_files_are_read_as_weights_only(tmp_path, monkeypatch):
    state = random_state()

    class Tensor:
        def __init__(self, array):
            self.array = array

        def detach(self):
            return self

        def numpy(self):
            return self.array

    def load(path, *, map_location, weights_only):
        assert (map_location, weights_only) == ("cpu", True)
        tensors = {f"module.{name}": Tensor(array) for name, array in state.items()}
        if path.suffix == ".ckpt":
            scheduler = {"last_epoch": 1}
            return {"epoch": 1, "clf": tensors, "optim": {}, "scheduler": scheduler}
        return {"epoch": 1, "test_accuracy": 0.5, "model_state_dict": tensors}

    torch = types.ModuleType("torch")
    monkeypatch.setattr(torch, "load", load, raising=False)
    monkeypatch.setattr(torch, "__version__", "2.6.0", raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    for file, prefix in (("state.pt", ""), ("last_state.ckpt", "clf/")):
        (tmp_path / file).touch()
        read = read_state(tmp_path / file)
        assert read.keys() == {f"{prefix}{name}" for name in state}
        for name in state:
            np.testing.assert_array_equal(read[f"{prefix}{name}"], state[name])


CONFIG = """
from attn_cnn_jax.config import base_config, self_attention

def get_config():
    config = base_config()
    config.model = self_attention("quadratic_isotropic")
    config.model.update(width=32, num_layers=2, num_heads=9, mlp_dim=40)
    return config
"""


def command(source, config, workdir):
    """What the command comes to."""
    flags = (f"--source={source}", f"--config={config}", f"--workdir={workdir}")
    arguments = [sys.executable, "-m", "attn_cnn_jax.interop", *flags]
    return subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT)


def test_the_command_makes_a_workdir(tmp_path):
    config, workdir = tmp_path / "small.py", tmp_path / "run"
    config.write_text(CONFIG)
    refused = command(tmp_path / "absent.npz", config, workdir)
    assert refused.returncode == 2 and not workdir.exists()
    assert refused.stderr.startswith("error: ") and "absent.npz" in refused.stderr
    assert "Traceback" not in refused.stderr
    done = command(FIXTURE, config, workdir)
    assert done.returncode == 0, done.stderr
    assert "26,928 parameters" in done.stdout
    loaded = checkpoint.load(workdir)
    assert loaded.step == 0 and loaded.config.model.width == 32
    with np.load(FIXTURE) as reference:
        images = reference["input"].transpose(0, 2, 3, 1)
        model = models.build(loaded.config.model, 10)
        apply = jax.jit(lambda v, x: model.apply(v, x, train=False))
        logits = apply(loaded.variables, images)
        np.testing.assert_allclose(logits, reference["logits_f32"], atol=1e-4)
    again = command(FIXTURE, config, workdir)
    assert again.returncode == 2 and "already holds a run" in again.stderr


REFUSED = """
from attn_cnn_jax.config import base_config, san, vit

def get_config(name):
    config = base_config()
    config.model = san("pairwise")
    if name != "block":
        config.dataset.name = name
        config.model = vit()
        config.model.update(stem_width=8, width=20, num_heads=3, head_dim=20)
        config.model.update(mlp_dim=24, num_layers=3, share_weights=True)
    return config
"""


@pytest.mark.parametrize(
    "name, fixture, part, message",
    [
        ("block", "san_pairwise", "k3/", "holds one block; a workdir needs"),
        ("digits_8x8", "ha_vit", "ha/", "dataset.name=digits_8x8: .*stem/conv/kernel"),
        ("cifar10", "ha_vit", "ha/", "dataset.name=cifar10: .*positions has shape"),
        ("cifar100", "ha_vit", "ha/", "dataset.name=cifar100: .*classifier/bias has"),
    ],
)
def test_a_state_that_could_not_be_evaluated_is_refused(
    tmp_path, name, fixture, part, message
):
    with np.load(FIXTURE.with_stem(fixture)) as arrays:
        state = {
            key.removeprefix(f"{part}{kind}/"): arrays[key]
            for kind in ("param", "buffer")
            for key in arrays.files
            if key.startswith(f"{part}{kind}/")
        }
    np.savez(tmp_path / "state.npz", **state)
    (tmp_path / "config.py").write_text(REFUSED)
    done = command(
        tmp_path / "state.npz", f"{tmp_path}/config.py:{name}", tmp_path / "w"
    )
    assert done.returncode == 2, done.stderr
    assert re.match(f"error: .*state.npz .*{message}", done.stderr)
    assert done.stderr.count("\n") == 1 and not (tmp_path / "w").exists()


def test_a_torch_that_runs_what_a_state_holds_is_refused(tmp_path, monkeypatch):
    torch = types.ModuleType("torch")
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124", raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    (tmp_path / "state.pt").touch()
    with pytest.raises(UserError, match="2.5.1.* pip install 'torch>=2.6'"):
        read_state(tmp_path / "state.pt")
