"""The report's models against numbers of their codes (fixtures/README.md).

Scalar of the gradients: L = sum(output * cot).
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_cnn_jax import models
from attn_cnn_jax.config import san, san_hierarchical, self_attention, vit
from attn_cnn_jax.interop import from_report, to_report
from attn_cnn_jax.models.san import aggregate, subtract

FIXTURES = Path(__file__).parents[1] / "fixtures"
DTYPES = ("float64", "float32")


@functools.cache
def fixture(name):
    """The arrays of a fixture by name."""
    with np.load(FIXTURES / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def below(arrays, prefix):
    """The arrays whose names start with `prefix`, without it."""
    return {
        k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)
    }


def state_of(arrays):
    """Parameters and buffers of a part of a fixture."""
    return {**below(arrays, "param/"), **below(arrays, "buffer/")}


def nhwc(array):
    """PyTorch's [B, C, H, W] as ours."""
    return jnp.asarray(array.transpose(0, 2, 3, 1))


def sample(reference, array):
    """What is kept of a result (see fixtures/README.md)."""
    size, step = reference["sampling"]
    array = np.asarray(array)
    return array.reshape(-1)[::step] if array.size > size else array


class Comparison:
    """Compares results with those of a fixture at the tolerances of their type."""

    def __init__(self, reference, wanted, dtype):
        self.reference, self.wanted, self.exact = reference, wanted, dtype == "float64"
        self.seen = 0

    def __call__(self, name, actual, float32_tolerance, relative=0.0):
        """`relative` adds to the tolerance in float32: a share of the largest value."""
        wanted = self.wanted[name]
        actual = sample(self.reference, actual)
        assert actual.shape == wanted.shape, name
        tolerance = float32_tolerance + relative * np.abs(wanted).max()
        tolerance = 1e-10 if self.exact else tolerance
        assert np.abs(actual - wanted).max() <= tolerance, name
        assert np.isfinite(actual).all()
        self.seen += 1


def run(module, variables, x, cot, *, train=False, log_softmax=False, **options):
    """Output, sown attention by layer, gradients by x and by variables, moved stats."""
    params = variables["params"]
    stats = {k: v for k, v in variables.items() if k != "params"}

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def scalar(params, x):
        out, moved = module.apply(
            {**stats, "params": params},
            x,
            train=train,
            mutable=["intermediates", *(stats if train else ())],
            **options,
        )
        out = out[0] if isinstance(out, tuple) else out
        out = jax.nn.log_softmax(out) if log_softmax else out
        return (out * cot).sum(), (out, moved)

    (_, (out, moved)), (of_params, of_x) = scalar(params, x)
    sown = moved.pop("intermediates")
    return out, sown, of_x, {**stats, "params": of_params}, moved


def test_a_sample_meets_every_index():
    """29 shares no factor with any size of the models."""
    assert fixture("ha_vit")["sampling"].tolist() == [250, 29]


OPS = ("k3_ref/", "k5_zero/", "k7_ref/")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", OPS)
def test_subtract_and_aggregate(case, dtype):
    reference = fixture("san_ops")
    arrays = below(reference, case)
    kernel_size = int(case[1])
    padding = {"ref": "reflect", "zero": "zero"}[case[3:-1]]
    options = {"padding": padding}
    with jax.enable_x64(dtype == "float64"):
        compare = Comparison(reference, arrays, dtype)
        a, b, v = (nhwc(arrays[name]).astype(dtype) for name in "abv")
        batch, height, width, _ = a.shape

        def to_taps(array):  # theirs: [B, C, T, HW]
            array = array.reshape(*array.shape[:3], height, width)
            return jnp.asarray(array.transpose(0, 3, 4, 2, 1), dtype)

        def from_taps(array):
            array = np.asarray(array).transpose(0, 4, 3, 1, 2)
            return array.reshape(*array.shape[:3], -1)

        def from_map(array):
            return np.asarray(array).transpose(0, 3, 1, 2)

        def check(name, function, inputs, cot, from_out, gradients):
            out, pull = jax.vjp(jax.jit(function), *inputs)
            compare(f"{name}/out", from_out(out), 1e-5)
            for (key, convert), gradient in zip(
                gradients, pull(cot.astype(dtype)), strict=True
            ):
                compare(f"{name}/grad_{key}", convert(gradient), 1e-4)

        minus = functools.partial(subtract, kernel_size=kernel_size, **options)
        check(
            "subtraction",
            lambda a: minus(a, a),
            (a,),
            to_taps(arrays["subtraction/cot"]),
            from_taps,
            [("a", from_map)],
        )
        check(
            "subtraction2",
            minus,
            (a, b),
            to_taps(arrays["subtraction2/cot"]),
            from_taps,
            [("a", from_map), ("b", from_map)],
        )
        check(
            "aggregation",
            functools.partial(aggregate, **options),
            (v, to_taps(arrays["w"])),
            nhwc(arrays["aggregation/cot"]),
            from_map,
            [("v", from_map), ("w", from_taps)],
        )
        assert compare.seen == 8


def compare_gradients(compare, prefix, gradients, dead=()):
    """All gradients by their published names; those of `dead` names are zero."""
    names = [k.removeprefix(prefix) for k in compare.wanted if k.startswith(prefix)]
    assert names
    for name in names:
        if any(name.endswith(end) for end in dead):
            assert np.abs(compare.wanted[prefix + name]).max() < 1e-12
        compare(prefix + name, gradients[name], 1e-4, relative=1e-4)


def their_taps(weights):
    """Our [B, H, W, T, G] as [B, G, T, HW]."""
    weights = np.asarray(weights).transpose(0, 4, 3, 1, 2)
    return weights.reshape(*weights.shape[:3], -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel_size", [3, 7])
@pytest.mark.parametrize("attention", ["pairwise", "patchwise"])
def test_a_bottleneck(attention, kernel_size, dtype):
    reference = fixture(f"san_{attention}")
    arrays = below(reference, f"k{kernel_size}/")
    config_model = san(attention)
    config_model.update(kernel_sizes=(kernel_size,) * 4, compute_dtype=dtype)
    with jax.enable_x64(dtype == "float64"):
        variables = from_report(state_of(arrays), config_model)
        block = models.san.Bottleneck(attention, kernel_size, True, jnp.dtype(dtype))
        x, cot = (nhwc(arrays[name]).astype(dtype) for name in ("x", "cot"))
        compare = Comparison(reference, arrays, dtype)
        for mode in ("", "train/"):
            out, sown, of_x, gradients, moved = run(
                block, variables, x, cot, train=bool(mode)
            )
            (weights,) = sown["attention"]["attention"]
            compare(f"{mode}out", np.asarray(out).transpose(0, 3, 1, 2), 1e-5)
            compare(f"{mode}attn", their_taps(weights), 5e-6)
            compare(f"{mode}grad_x", np.asarray(of_x).transpose(0, 3, 1, 2), 1e-4)
            if mode:
                after = to_report(
                    {**moved, "params": variables["params"]}, config_model
                )
                for name in below(arrays, "train/buffer/"):
                    compare(f"train/buffer/{name}", after[name], 1e-5)
            else:
                dead = (
                    ("conv_p.bias", "conv_w.5.bias") if attention == "pairwise" else ()
                )
                names = to_report(gradients, config_model)
                compare_gradients(compare, "grad/", names, dead)
        assert compare.seen >= 6 + 8 + 19


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("behaviour", ["published", "preact"])
def test_hierarchical_san(behaviour, dtype):
    reference = fixture("ha_san_pairwise")
    config_model = san_hierarchical("pairwise")
    config_model.update(
        width=64, pre_activation=behaviour == "preact", compute_dtype=dtype
    )
    with jax.enable_x64(dtype == "float64"):
        variables = from_report(state_of(reference), config_model)
        model = models.build(config_model, 10)
        x, cot = nhwc(reference["x"]).astype(dtype), reference["cot"].astype(dtype)
        out, sown, of_x, gradients, _ = run(model, variables, x, cot)
    compare = Comparison(reference, below(reference, f"{behaviour}/"), dtype)
    compare("logits", out, 1e-5)
    compare("grad_x", np.asarray(of_x).transpose(0, 3, 1, 2), 1e-4)
    weights = sown["block_1"]["attention"]["attention"]
    assert len(weights) == 4
    for i, one_pass in enumerate(weights):
        compare(f"attn/pass_{i + 1}", their_taps(one_pass), 5e-6)
    if behaviour == "published":
        dead = ("bn1.weight", "bn1.bias", "enc_layer.1.sam.conv2.weight")
        dead = tuple(f"enc_layer.{i}.{name}" for i in (0, 1) for name in dead[:2]) + (
            dead[2],
        )
        compare_gradients(compare, "grad/", to_report(gradients, config_model), dead)


def test_the_early_hierarchical_san_sweeps_twice(x64):
    """The authors' first version has no vector here: two sweeps are sixteen blocks."""
    config_model = san_hierarchical("pairwise")
    config_model.update(width=64, pre_activation=True, num_sweeps=2)
    reference = fixture("ha_san_pairwise")
    variables = from_report(state_of(reference), config_model)
    x, cot = nhwc(reference["x"]), reference["cot"]
    model = models.build(config_model, 10)
    out, sown, of_x, _, _ = run(model, variables, x.astype("float32"), cot)
    compare = Comparison(reference, below(reference, "early/"), "float32")
    compare("logits", out, 1e-5)
    weights = sown["block_1"]["attention"]["attention"]
    assert len(weights) == 8
    for i in range(4):
        compare(f"attn/pass_{i + 1}", their_taps(weights[2 * i + 1]), 5e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["sa", "ha"])
def test_the_reports_vision_transformer(kind, dtype):
    reference = fixture("ha_vit")
    arrays = below(reference, f"{kind}/")
    config_model = vit()
    config_model.update(
        stem_width=8, width=20, num_heads=3, head_dim=20, mlp_dim=24, num_layers=3
    )
    config_model.update(share_weights=kind == "ha", compute_dtype=dtype)
    with jax.enable_x64(dtype == "float64"):
        variables = from_report(state_of(arrays), config_model)
        x, cot = nhwc(reference["x"]).astype(dtype), reference["cot"].astype(dtype)
        # Theirs is (channel, row, column), ours (row, column, channel).
        token = reference["cls_patch"].reshape(2, 8, 2, 2).transpose(0, 2, 3, 1)
        model = models.build(config_model, 10)
        out, sown, of_x, gradients, _ = run(
            model, variables, x, cot, class_token=jnp.asarray(token.reshape(2, -1))
        )
    compare = Comparison(reference, arrays, dtype)
    compare("logits", out, 1e-5)
    compare("grad_x", np.asarray(of_x).transpose(0, 3, 1, 2), 1e-4)
    for i, probs in enumerate(layers_of(sown)):
        compare(f"attn/layer_{i}", probs, 5e-6)
    compare_gradients(compare, "grad/", to_report(gradients, config_model))


def layers_of(sown):
    """The probabilities of three layers, shared or not."""
    if "block" in sown:
        layers = sown["block"]["attention"]["attention"]
    else:
        layers = [sown[f"block_{i}"]["attention"]["attention"][0] for i in range(3)]
    assert len(layers) == 3
    return layers


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes", ["standard", "transposed"])
@pytest.mark.parametrize(
    "kind", ["sa9", "ha9", pytest.param("ha16", marks=pytest.mark.soak)]
)
def test_the_reports_learned_attention(kind, axes, dtype):
    reference = fixture("ha_learned")
    arrays = below(reference, f"{kind}/")
    config_model = self_attention("learned_w_content_report")
    config_model.update(
        width=12, mlp_dim=16, num_layers=3, num_heads=int(kind[2:]), compute_dtype=dtype
    )
    config_model.share_weights = kind.startswith("ha")
    config_model.attention.update(
        project_values=kind == "ha16", transposed=axes == "transposed"
    )
    with jax.enable_x64(dtype == "float64"):
        variables = from_report(state_of(arrays), config_model)
        x, cot = nhwc(reference["x"]).astype(dtype), reference["cot"].astype(dtype)
        model = models.build(config_model, 10)
        out, sown, of_x, gradients, _ = run(model, variables, x, cot, log_softmax=True)
    compare = Comparison(reference, below(arrays, f"{axes}/"), dtype)
    compare("log_probs", out, 1e-5)
    compare("grad_x", np.asarray(of_x).transpose(0, 3, 1, 2), 1e-4)
    for i, probs in enumerate(layers_of(sown)):
        # Theirs: [b, query row, query column, head, key row, key column].
        theirs = np.asarray(probs).transpose(0, 2, 3, 1, 4, 5)
        compare(f"attn/layer_{i}", theirs, 5e-6)
    compare_gradients(compare, "grad/", to_report(gradients, config_model))


def google_model(**fields):
    """The `config.model` of the vectors, without a stem."""
    config_model = vit("standard")
    config_model.update(stem_width=0, width=24, num_heads=3, head_dim=8, mlp_dim=40)
    config_model.update(num_layers=2, **fields)
    return config_model


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_of_the_standard_vision_transformer(dtype):
    reference = fixture("vit_google")
    arrays = below(reference, "block/")
    config_model = google_model(compute_dtype=dtype)
    with jax.enable_x64(dtype == "float64"):
        variables = from_report(state_of(arrays), config_model)
        block = models.build(config_model, 10).block("block")
        x, cot = (jnp.asarray(arrays[name], dtype) for name in ("x", "cot"))
        out, sown, of_x, gradients, _ = run(block, variables, x, cot)
    compare = Comparison(reference, arrays, dtype)
    compare("out", out, 1e-5)
    compare("grad_x", of_x, 1e-4)
    compare("attn", sown["attention"]["attention"][0], 5e-6)
    compare_gradients(
        compare, "grad/", to_report(gradients, config_model), ("/key/bias",)
    )


def test_the_standard_vision_transformer():
    """Google's network computes in float32 inside."""
    reference = fixture("vit_google")
    arrays = below(reference, "net/")
    config_model = google_model()
    variables = from_report(state_of(arrays), config_model)
    model = models.build(config_model, 10)
    out, sown, _, _, _ = run(model, variables, jnp.asarray(arrays["x"]), arrays["cot"])
    compare = Comparison(reference, arrays, "float32")
    compare("logits", out, 1e-5)
    for i in range(2):
        probs = sown[f"block_{i}"]["attention"]["attention"][0]
        compare(f"attn/layer_{i}", probs, 5e-6)
