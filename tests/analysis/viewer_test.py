"""The viewer's file: exact to 1/255, small, closed to what names may contain."""

import base64
import gzip
import hashlib
import html
import json
import re

import numpy as np
import pytest

from attn_cnn_jax.analysis.attention_maps import AttentionMaps
from attn_cnn_jax.analysis.pictures import average_attention
from attn_cnn_jax.analysis.viewer import write_viewer
from attn_cnn_jax.analysis.viewer.encode import (
    SCALES,
    encode_layer,
    quantize,
    ranges,
    to_text,
)
from attn_cnn_jax.analysis.viewer.factors import factorize
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


def blocks(page: str) -> dict[str, bytes]:
    found = re.findall(r'<script type="text/plain" id="([^"]+)">([^<]*)</script>', page)
    return {name: gzip.decompress(unpacked(text)) for name, text in found}


def unpacked(text: str) -> bytes:
    """The bytes of a text that holds seven bits a character."""
    codes = [{"À": 0, "Á": 13, "Â": 60}.get(letter, ord(letter)) for letter in text]
    bits = "".join(f"{code:07b}" for code in codes)
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits) - 7, 8))


def description(page: str) -> dict:
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*)</script>', page
    )
    return json.loads(text)


@pytest.mark.parametrize("scale", range(len(SCALES) - 1))  # those of 8 bits
@pytest.mark.parametrize("peak", [0.1, 1.0, 8.0, 30.0])
def test_a_value_is_1_255th_of_its_rows_maximum_off_at_most(scale, peak):
    draw = np.random.default_rng(0)
    rows = np.exp(peak * draw.normal(size=(200, 50)))
    rows = (rows / rows.sum(-1, keepdims=True)).astype(np.float32)
    if scale == 0:
        rows *= draw.choice(np.float32([-1, 1]), rows.shape)
    rows[3] = 0  # a head that gives nothing (all mass at the class token)
    low, high = ranges(rows, signed=scale == 0)
    shares = SCALES[scale][quantize(rows, low, high, SCALES[scale])]
    decoded = low[:, None] + (high - low)[:, None].astype(np.float64) * shares
    largest = np.abs(rows).max(-1, keepdims=True)
    assert (np.abs(decoded - rows) <= largest / 255 * (1 + 1e-9)).all()
    assert np.abs(decoded - rows).max() > 0


@pytest.mark.parametrize("length", range(1, 17))
def test_bytes_survive_as_text(length, tmp_path):
    raw = (
        np.random.default_rng(length).bytes(length * 501) + bytes(range(256))[-length:]
    )
    (tmp_path / "text").write_text(to_text(raw), encoding="utf-8")
    text = (tmp_path / "text").read_text(encoding="utf-8")
    assert not set(text) & set("<\0\r") and unpacked(text) == raw
    assert len(text.encode()) < 1.18 * len(raw) + 2


def test_small_probabilities_are_finer_where_there_is_room():
    rows = np.geomspace(1e-3, 1, 64, dtype=np.float32)[None]
    low, high = ranges(rows, signed=False)
    decoded = SCALES[1][quantize(rows, low, high, SCALES[1])]
    assert np.abs(decoded / rows - 1).max() < 0.15


def test_what_is_no_probability_is_refused():
    with pytest.raises(ValueError, match="negative"):
        ranges(np.float32([[0.5, -0.1]]), signed=False)
    with pytest.raises(ValueError, match="finite"):
        ranges(np.float32([[0.5, np.nan]]), signed=True)


@pytest.mark.parametrize("make", [gaussian_heads, noise_heads])
def test_a_layer_can_be_read_back(make):
    probs, mass = make(3, (4, 5), 0), np.random.default_rng(0).random((3, 4, 5))
    packed = encode_layer(probs, mass.astype(np.float32), signed=False, average=True)
    raw = gzip.decompress(packed)
    floats = np.frombuffer(raw, "<f4", 3 * 20 * 2 + 3)
    codes = np.frombuffer(raw, np.uint8, offset=floats.nbytes)
    np.testing.assert_array_equal(floats[:60], probs.max((-2, -1)).ravel())
    np.testing.assert_array_equal(floats[60:120], mass.astype(np.float32).ravel())
    averages = floats[120:, None] * SCALES[1][codes[:60]].reshape(3, 20)
    expected = average_attention(probs).reshape(3, 20)
    assert np.abs(averages - expected).max() <= expected.max() / 255
    scale, axes, differences = codes[60], codes[61:64], codes[64:]
    heads = differences.reshape(probs.shape).copy()
    for head in range(3):
        for axis in range(4):
            if axes[head] >> axis & 1:
                heads[head] = heads[head].cumsum(axis, dtype=np.uint8)
    largest = probs.max((-2, -1), keepdims=True)
    errors = np.abs(largest * SCALES[scale][heads] - probs)
    assert (errors <= largest / 255 * (1 + 1e-6)).all()


def test_factors_of_scores_are_as_exact_as_asked_for():
    probs = flat_heads(1, 1).reshape(256, 256)
    shares = probs / probs.max(-1, keepdims=True)
    found = factorize(shares, 1e-3)
    assert found is not None and found.rank <= 36 + 1  # and the rows' own maxima
    assert 0 < np.abs(found.shares() - shares).max() <= 1e-3
    planes = np.frombuffer(found.to_bytes(), np.uint8).reshape(2, found.rank, 512)
    zigzag = planes[0] + 256 * planes[1].astype(int)
    integers = np.where(zigzag % 2, -(zigzag + 1) // 2, zigzag // 2).T
    np.testing.assert_array_equal(integers[:256], found.queries)
    np.testing.assert_array_equal(integers[256:], found.keys)
    assert factorize(noise_heads(1, (16, 16), 0).reshape(256, 256), 1e-6) is None


def test_a_layer_of_factors_can_be_read_back():
    """Flat and full of detail, so that codes would not fit."""
    probs = flat_heads(9, 2)
    raw = gzip.decompress(encode_layer(probs, None, signed=False, average=False))
    high = np.frombuffer(raw, "<f4", 9 * 256).reshape(9, 256, 1)
    at = high.nbytes
    assert raw[at] == len(SCALES) - 1
    ranks = list(raw[at + 1 : at + 10])
    steps = np.frombuffer(raw[at + 10 : at + 46], "<f4")
    at += 46
    for head, (rank, step) in enumerate(zip(ranks, steps, strict=True)):
        planes = np.frombuffer(raw, np.uint8, 1024 * rank, at).reshape(2, rank, 512)
        at += 1024 * rank
        zigzag = planes[0] + 256 * planes[1].astype(int)
        integers = np.where(zigzag % 2, -(zigzag + 1) // 2, zigzag // 2)
        products = integers[:, :256].T @ integers[:, 256:]
        roots = np.exp(0.5 * np.float64(step) ** 2 * products)
        codes = np.minimum(np.rint(1023 * roots).astype(int), 1023)
        errors = np.abs(high[head] * SCALES[-1][codes] - probs[head].reshape(256, 256))
        assert (errors <= high[head] / 255).all()
    assert at == len(raw)


@pytest.mark.parametrize(
    "heads, megabytes",
    [
        (gaussian_heads(9, (16, 16), 0), 0.3),
        (content_heads(9, 8.0, 0), 2.0),
        (flat_heads(9, 0), 2.0),
        (noise_heads(9, (16, 16), 0), 5.0),
    ],
    ids=["gaussian", "content", "flat", "noise"],
)
def test_six_layers_of_nine_heads_are_small(heads, megabytes, tmp_path, measured):
    def size(images: int) -> int:
        probs = heads[None].repeat(images, 0) if images > 1 else heads[None]
        maps = attention_maps([probs], images=max(images, 2))
        return write_viewer(tmp_path / "viewer.html", [maps], title="sizes")

    image = size(3) - size(2)
    measured("viewer", f"{6 * image / 1e6:.2f} MB an image")
    assert 6 * image < megabytes * 1e6


def test_maps_of_positions_alone_are_stored_once(tmp_path):
    probs = gaussian_heads(3, (4, 5), 0)[None]
    path = tmp_path / "viewer.html"
    write_viewer(path, [attention_maps([probs], images=5)], title="one map")
    names = [name for name in blocks(path.read_text()) if name.startswith("maps")]
    assert names == ["maps-0-0-0"]
    assert description(path.read_text())["layers"][0]["shared"]


def test_the_file_says_its_size_and_is_the_same_each_time(tmp_path):
    maps = [attention_maps([noise_heads(3, (4, 5), 0)[None].repeat(2, 0)])]
    size = write_viewer(tmp_path / "deep/a.html", maps, title="a")
    write_viewer(tmp_path / "b.html", maps, title="a")
    first = (tmp_path / "deep/a.html").read_bytes()
    assert len(first) == size and first == (tmp_path / "b.html").read_bytes()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a.html"]


def test_a_file_above_the_limit_is_refused(tmp_path):
    path = tmp_path / "viewer.html"
    path.write_text("of an earlier time")
    probs = noise_heads(9, (8, 8), 0)[None].repeat(20, 0)
    maps = attention_maps([probs], images=20)
    with pytest.raises(UserError) as error:
        write_viewer(path, [maps] * 3, title="large", max_bytes=400_000)
    (needed,) = re.findall(r"about ([\d.]+) MB", str(error.value))
    size = write_viewer(tmp_path / "whole.html", [maps] * 3, title="large")
    assert 0.8 < float(needed) * 1e6 / size < 1.3
    for part in ("0.4 MB", "--viewer_max_mb", "fewer images or checkpoints (20 and 3"):
        assert part in str(error.value)
    assert path.read_text() == "of an earlier time"
    assert {p.name for p in tmp_path.iterdir()} == {"viewer.html", "whole.html"}


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
    hostile = "</script><img src=x onerror=alert(1)>&\u2028<!--"
    path = tmp_path / "viewer.html"
    maps = attention_maps(
        [gaussian_heads(1, (2, 2), 0)[None]],
        names=(hostile, hostile),
        layers=(hostile,),
        run=hostile,
    )
    write_viewer(path, [maps], title=hostile)
    page = path.read_text(encoding="utf-8")
    assert "<img" not in page and "<!--" not in page
    assert page.count(html.escape(hostile)) == 2  # title and heading
    data = description(page)
    assert data["names"] == [hostile, hostile] and hostile in data["about"]
    assert data["layers"][0]["name"] == hostile


def test_the_page_allows_itself_alone(tmp_path):
    path = tmp_path / "viewer.html"
    maps = attention_maps([gaussian_heads(1, (2, 2), 0)[None]])
    write_viewer(path, [maps], title="closed")
    page = path.read_text(encoding="utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == rules.pop("base-uri") == "'none'"
    assert rules.pop("form-action") == "'none'"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    assert not rules
    assert not re.search(r"\s(src|href|style|on\w+)=|https?:|{{", page)
