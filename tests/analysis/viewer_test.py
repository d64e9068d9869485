"""The viewer's file: exact to 1/255, small, closed to what names may contain."""

import base64
import hashlib
import html
import re

import numpy as np
import pytest
from viewer_page import blocks, description, unescaped

from attn_cnn_jax.analysis.attention_maps import AttentionMaps
from attn_cnn_jax.analysis.pictures import average_attention
from attn_cnn_jax.analysis.viewer import write_viewer
from attn_cnn_jax.analysis.viewer.encode import (
    encode_layer,
    escape,
    quantize,
    shares,
)
from attn_cnn_jax.errors import UserError


def softmax(scores: np.ndarray) -> np.ndarray:
    exponential = np.exp(scores - scores.max((-2, -1), keepdims=True))
    probs = exponential / exponential.sum((-2, -1), keepdims=True)
    return probs.astype(np.float32)


def gaussian_heads(heads: int, grid: tuple[int, int], seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    offsets = [np.arange(n)[None] - np.arange(n)[:, None] for n in grid]
    centers, spreads = draw.normal(0, 2, (heads, 2)), draw.uniform(0.1, 1.5, heads)
    rows, cols = (
        -0.5 * (spreads[:, None, None] * (d - centers[:, axis, None, None])) ** 2
        for axis, d in enumerate(offsets)
    )
    return softmax(rows[:, :, None, :, None] + cols[:, None, :, None, :])


def content_heads(heads: int, sharpness: float, seed: int) -> np.ndarray:
    """Softmax of q . k of smooth random features on a grid of 16 x 16."""
    draw = np.random.default_rng(seed)
    row, col = np.fft.fftfreq(16)[:, None], np.fft.rfftfreq(16)[None]
    low_pass = np.exp(-2 * (1.5 * np.pi) ** 2 * (row**2 + col**2))
    x = np.fft.irfft2(np.fft.rfft2(draw.normal(size=(16, 16, 16))) * low_pass)
    x /= x.std((-2, -1), keepdims=True)
    kernels = draw.normal(size=(heads, 16, 16)) / 4
    return softmax(
        sharpness / 4 * np.einsum("dij,nde,ekl->nijkl", x, kernels, x, optimize=True)
    )


def flat_heads(heads: int, seed: int) -> np.ndarray:
    """Small q . k of 36 features without order: of a network that begins to learn."""
    draw = np.random.default_rng(seed)
    queries, keys = draw.normal(size=(2, heads, 16, 16, 36))
    return softmax(np.einsum("nijd,nkld->nijkl", queries, keys) / 9)


def noise_heads(heads: int, grid: tuple[int, int], seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).random((heads, *grid, *grid), np.float32)
    return noise / noise.sum((-2, -1), keepdims=True)


def worst_heads(heads: int, grid: tuple[int, int], seed: int) -> np.ndarray:
    """All codes as often as one another, and largest values without order."""
    draw = np.random.default_rng(seed)
    drawn = draw.choice(shares(signed=False), (heads, *grid, *grid))
    return (drawn * draw.random((heads, *grid, 1, 1))).astype(np.float32)


def attention_maps(probs, *, images: int = 2, **fields) -> AttentionMaps:
    values = {
        "kind": "grid",
        "layers": tuple(f"layer {i + 1}" for i in range(len(probs))),
        "probs": tuple(probs),
        "class_mass": None,
        "images": np.random.default_rng(0).integers(
            0, 256, (images, 8, 10, 3), np.uint8
        ),
        "names": tuple(f"test image {i}" for i in range(images)),
        "run": "a_run",
        "step": 300,
        "epoch": 1.5,
    }
    return AttentionMaps(**{**values, **fields})


def hostile_rows() -> np.ndarray:
    """Rows of 50 values from flat to sharp, then those at the edge of float32."""
    draw = np.random.default_rng(0)
    rows = [np.exp(peak * draw.normal(size=50)) for peak in (0, 0.1, 1, 3, 8, 30)] * 9
    rows += [np.zeros(50), np.eye(50)[7], np.linspace(0, 1, 50)]
    rows = np.array([row / max(1, row.sum()) for row in rows], np.float32)
    tiny, huge = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
    edges = [draw.integers(0, 99, 50) * tiny, draw.random(50) * huge]
    edges += [np.eye(50)[3] * tiny, np.where(np.eye(50)[5], huge, tiny)]
    return np.concatenate([rows, np.array(edges, np.float32)])


@pytest.mark.parametrize("signed", [False, True])
def test_a_value_is_at_most_1_255th_of_its_rows_largest_off(signed):
    rows = hostile_rows()
    if signed:
        rows *= np.random.default_rng(1).choice(
            np.array([-1, 1], np.float32), rows.shape
        )
    largest, codes = quantize(rows, signed=signed)
    assert largest.dtype == np.float32 and codes.dtype == np.uint8
    decoded = largest.astype(np.float64)[:, None] * shares(signed=signed)[codes]
    bound = np.abs(rows).max(-1, keepdims=True).astype(np.float64) / 255
    assert (np.abs(decoded - rows) <= bound * (1 + 1e-9)).all()
    # What is largest is exact, and 0 is where it is no weight between two codes.
    exact = np.abs(rows) == largest[:, None]
    if not signed:
        exact |= rows == 0
    np.testing.assert_array_equal(decoded[exact], rows[exact])


def test_small_probabilities_are_finer():
    rows = np.geomspace(1e-3, 1, 64, dtype=np.float32)[None]
    _, codes = quantize(rows, signed=False)
    assert np.abs(shares(signed=False)[codes] / rows - 1).max() < 0.2


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("signed", [False, True])
def test_values_that_are_not_finite_are_refused(wrong, signed):
    with pytest.raises(ValueError, match="finite"):
        quantize(np.array([[0.5, 0.5], [0.5, wrong]]), signed=signed)


def test_negative_probabilities_are_refused():
    with pytest.raises(ValueError, match="negative"):
        quantize(np.array([[0.5, 0.5], [0.5, -1e-30]]), signed=False)


def test_bytes_survive_as_text():
    """`viewer_browser_test` gives the same bytes to a real parser."""
    raw = b"</script><!--\r\n\0==}" + bytes(range(256)) * 2
    text = escape(raw)
    assert not set(text) & set(b"\0\r<") and unescaped(text) == raw
    assert len(escape(bytes(range(256)))) == 256 + 4


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("make", [gaussian_heads, noise_heads])
def test_a_layer_can_be_read_back(make, average):
    probs = make(3, (4, 5), 0)
    mass = np.random.default_rng(0).random((3, 4, 5)).astype(np.float32)
    raw = encode_layer(probs, mass, signed=False, average=average)
    floats = np.frombuffer(raw, "<f4", 3 * 20 * 2 + 3 * average)
    codes = np.frombuffer(raw, np.uint8, offset=floats.nbytes)
    assert codes.size == probs.size + 60 * average
    values = shares(signed=False)[codes]
    largest = probs.max((-2, -1))
    np.testing.assert_array_equal(floats[:60], largest.ravel())
    np.testing.assert_array_equal(floats[60:120], mass.ravel())
    decoded = largest[..., None, None] * values[: probs.size].reshape(probs.shape)
    errors = np.abs(decoded - probs)
    assert (errors <= largest[..., None, None] / 255 * (1 + 1e-6)).all()
    if average:
        found = floats[120:, None] * values[probs.size :].reshape(3, 20)
        expected = average_attention(probs).reshape(3, 20)
        bound = expected.max(-1, keepdims=True) / 255 * (1 + 1e-6)
        assert (np.abs(found - expected) <= bound).all()


@pytest.mark.parametrize(
    "heads, megabytes",
    [
        (gaussian_heads(9, (16, 16), 0), 0.6),
        (content_heads(9, 8.0, 0), 2.0),
        (flat_heads(9, 0), 3.6),
        (noise_heads(9, (16, 16), 0), 3.6),
        (worst_heads(9, (16, 16), 0), 3.6),
    ],
    ids=["gaussian", "content", "flat", "noise", "worst"],
)
def test_six_layers_of_nine_heads_are_small(heads, megabytes, tmp_path, measured):
    """A layer of 9 x 256 x 256, six times; no content takes more than 3.6 MB."""

    def size(images: int) -> int:
        probs = heads[None].repeat(images, 0) if images > 1 else heads[None]
        maps = attention_maps([probs], images=max(images, 2))
        return write_viewer(tmp_path / "viewer.html", [maps], title="sizes").size

    image = size(3) - size(2)
    measured("viewer", f"{6 * image / 1e6:.2f} MB an image")
    assert 6 * image <= megabytes * 1e6


def test_maps_of_positions_alone_are_stored_once(tmp_path):
    probs = gaussian_heads(3, (4, 5), 0)[None]
    path = tmp_path / "viewer.html"
    write_viewer(path, [attention_maps([probs], images=5)], title="one map")
    names = [name for name in blocks(path.read_bytes()) if name.startswith("maps")]
    assert names == ["maps-0-0-0"]
    assert description(path.read_text("ascii", "ignore"))["checkpoints"][0][
        "shared"
    ] == [True]


def test_the_file_says_its_size_and_is_the_same_each_time(tmp_path):
    maps = [attention_maps([noise_heads(3, (4, 5), 0)[None].repeat(2, 0)])]
    size = write_viewer(tmp_path / "deep/a.html", maps, title="a").size
    write_viewer(tmp_path / "b.html", maps, title="a")
    first = (tmp_path / "deep/a.html").read_bytes()
    assert len(first) == size and first == (tmp_path / "b.html").read_bytes()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a.html"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    maps = attention_maps([gaussian_heads(1, (2, 2), 0)[None]])
    with pytest.raises(UserError, match="cannot be written"):
        write_viewer(tmp_path / "file/viewer.html", [maps], title="none")


def test_checkpoints_of_different_models_are_refused(tmp_path):
    maps = [attention_maps([gaussian_heads(n, (2, 2), 0)[None]]) for n in (1, 2)]
    with pytest.raises(ValueError, match="differ"):
        write_viewer(tmp_path / "viewer.html", maps, title="two")
    assert not list(tmp_path.iterdir())


def test_no_name_can_become_markup(tmp_path):
    hostile = "</script><img src=x onerror=alert(1)>&\u2028\u20ac\u65e5<!--"
    path = tmp_path / "viewer.html"
    maps = attention_maps(
        [gaussian_heads(1, (2, 2), 0)[None]],
        names=(hostile, hostile),
        layers=(hostile,),
        run=hostile,
    )
    write_viewer(path, [maps], title=hostile)
    page = path.read_text(encoding="ascii", errors="ignore")
    assert "<img" not in page and "<!--" not in page
    title = html.escape(hostile).encode("ascii", "xmlcharrefreplace").decode()
    assert page.count(title) == 2  # title and heading
    data = description(page)
    assert data["names"] == [hostile, hostile] and hostile in data["about"]
    assert data["layers"][0]["name"] == hostile


def test_all_but_the_blocks_is_ascii(tmp_path):
    path = tmp_path / "viewer.html"
    maps = attention_maps([noise_heads(1, (8, 8), 0)[None]], names=("\u00e9", "\u65e5"))
    write_viewer(path, [maps], title="\u20ac")
    page = path.read_bytes()
    assert not page.isascii()
    assert re.sub(
        rb'<script type="text/plain".*?</script>', b"", page, flags=re.DOTALL
    ).isascii()
    assert b'<meta charset="windows-1252">' in page[:1024]


def test_the_page_allows_itself_alone(tmp_path):
    path = tmp_path / "viewer.html"
    maps = attention_maps([gaussian_heads(1, (2, 2), 0)[None]])
    write_viewer(path, [maps], title="closed")
    page = path.read_text(encoding="ascii", errors="ignore")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == rules.pop("base-uri") == "'none'"
    assert rules.pop("form-action") == "'none'"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    assert not rules
    assert set(re.findall(r"https?:[^\s\"]*", page)) == {"http://www.w3.org/2000/svg"}
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"\s(src|href|style|on\w+)=|{{", markup)
