"""The numbers of heads against heads whose numbers are known by hand."""

import dataclasses
import math
import weakref

import numpy as np
import pytest

from attn_cnn_jax.analysis.heads import HeadTable, covered_offsets, head_statistics
from attn_cnn_jax.covered_offsets import largest_kernel
from attn_cnn_jax.errors import UserError

GRID = (8, 9)  # R = 2, interior queries (2..5, 2..6)


def of_heads(heads, *maps: np.ndarray, threshold: float = 0.5) -> HeadTable:
    """The table of one layer of position-only heads."""
    return head_statistics(heads.maps(np.stack(maps)[None]), threshold)


def test_a_dirac_head_is_a_convolution_of_its_offset(heads):
    table = of_heads(heads, heads.dirac((-1, 2), GRID), heads.dirac((0, 0), GRID))
    head, center = table.heads
    assert head.expected_offset == (-1, 2)
    assert head.mean_distance == math.sqrt(5)
    assert head.entropy == 0 and head.content_dependence == 0
    assert (head.best_offset, head.best_mass, head.covers) == ((-1, 2), 1, True)
    assert (head.layer, head.head, head.class_mass) == ("layer 1", 1, None)
    assert center.best_offset == (0, 0) and center.mean_distance == 0
    (layer,) = table.layers
    assert layer.grid == GRID and layer.radius == 2 and layer.num_queries == 4 * 5
    assert layer.covered == ((-1, 2), (0, 0)) and layer.kernel_size == 1
    assert (table.run, table.step, table.epoch) == ("by_hand_seed1", 20, 2.5)
    assert (table.num_images, table.threshold, table.shares) == (1, 0.5, False)


def test_an_offset_beyond_the_radius_is_no_candidate(heads):
    """On 9 x 9 R is 3; from query 3 to 5 offset 4 ends at key 7 to 9: (0, 4) is out."""
    (head,) = of_heads(heads, heads.dirac((0, 3), (9, 9))).heads
    assert head.best_offset == (0, 3) and head.covers
    (head,) = of_heads(heads, heads.dirac((0, -4), (9, 9))).heads
    assert head.best_mass == 1 / 3 and head.best_offset == (0, 0)  # where it is outside
    assert not head.covers
    assert head.expected_offset == pytest.approx((0, -4 * 2 / 3))


def test_a_uniform_head(heads):
    (head,) = of_heads(heads, heads.uniform(GRID)).heads
    pixels = [(r, c) for r in range(8) for c in range(9)]
    interior = [(r, c) for r in range(2, 6) for c in range(2, 7)]
    distances = [math.dist(q, k) for q in interior for k in pixels]
    assert head.mean_distance == pytest.approx(np.mean(distances), rel=1e-6)
    assert head.entropy == pytest.approx(math.log(72), rel=1e-6)
    assert head.expected_offset == pytest.approx((0, 0), abs=1e-6)
    assert head.best_mass == pytest.approx(1 / 72) and not head.covers
    assert head.best_offset == (0, 0)  # all are equal: the shortest


def test_a_gaussian_head_against_a_brute_force_loop(heads):
    center, precision = (0.6, -1.2), 0.8
    probs = np.zeros((*GRID, *GRID), np.float32)
    numbers = {"offset": [], "distance": [], "entropy": []}
    masses: dict = {}
    for i in range(8):
        for j in range(9):
            for k in range(8):
                for n in range(9):
                    square = (k - i - center[0]) ** 2 + (n - j - center[1]) ** 2
                    probs[i, j, k, n] = math.exp(-precision / 2 * square)
            probs[i, j] /= probs[i, j].sum()
            if not (2 <= i <= 5 and 2 <= j <= 6):
                continue
            keys = [
                (k, n, float(probs[i, j, k, n])) for k in range(8) for n in range(9)
            ]
            row = sum(p * (k - i) for k, n, p in keys)
            column = sum(p * (n - j) for k, n, p in keys)
            numbers["offset"].append((row, column))
            numbers["distance"].append(
                sum(p * math.hypot(k - i, n - j) for k, n, p in keys)
            )
            numbers["entropy"].append(-sum(p * math.log(p) for _, _, p in keys if p))
            for k, n, p in keys:
                masses.setdefault((k - i, n - j), []).append(p)
    (head,) = of_heads(heads, probs).heads
    offset = tuple(np.mean(numbers["offset"], axis=0))
    assert head.expected_offset == pytest.approx(offset, rel=1e-5)
    assert head.mean_distance == pytest.approx(np.mean(numbers["distance"]), rel=1e-5)
    assert head.entropy == pytest.approx(np.mean(numbers["entropy"]), rel=1e-5)
    assert head.best_offset == (1, -1)
    assert head.best_mass == pytest.approx(np.mean(masses[1, -1]), rel=1e-5)
    assert len(masses[1, -1]) == 20  # every interior query has that key


@pytest.mark.parametrize("grid", [(4, 4), (8, 9), (16, 16)])
def test_a_head_that_looks_at_one_pixel_is_no_convolution(heads, grid):
    (head,) = of_heads(heads, heads.fixed((1, 1), grid)).heads
    queries = (grid[0] - 2 * (min(grid) // 3)) * (grid[1] - 2 * (min(grid) // 3))
    assert head.best_mass <= 1 / queries + 1e-12 and not head.covers
    assert head.entropy == 0


def test_half_of_the_mass_covers_and_less_does_not(heads):
    half = (heads.dirac((1, 1), GRID) + heads.uniform(GRID)) / 2
    mass = 0.5 + 0.5 / 72
    table = of_heads(heads, half, threshold=mass - 1e-6)
    assert table.heads[0].covers and table.threshold == mass - 1e-6
    table = of_heads(heads, half, threshold=mass + 1e-6)
    assert not table.heads[0].covers
    assert table.heads[0].best_offset == (1, 1)
    assert table.heads[0].best_mass == pytest.approx(mass, rel=1e-6)
    exactly = (heads.dirac((1, 1), GRID) + heads.dirac((2, 2), GRID)) / 2
    assert of_heads(heads, exactly).heads[0].covers


def test_queries_near_the_border_do_not_count(heads):
    probs = heads.dirac((1, 0), GRID)
    border = np.ones(GRID, bool)
    border[2:6, 2:7] = False
    probs[border] = heads.uniform(GRID)[border]
    assert (
        of_heads(heads, probs).heads == of_heads(heads, heads.dirac((1, 0), GRID)).heads
    )


def test_nine_heads_are_a_3x3_kernel_and_25_a_5x5(heads):
    def square(radius: int) -> list:
        span = range(-radius, radius + 1)
        return [heads.dirac((r, c), GRID) for r in span for c in span]

    (layer,) = of_heads(heads, *square(1)).layers
    assert len(layer.covered) == 9 and layer.kernel_size == 3
    (layer,) = of_heads(heads, *square(2)).layers
    assert len(layer.covered) == 25 and layer.kernel_size == 5
    (layer,) = of_heads(heads, *square(2)[:-1]).layers
    assert len(layer.covered) == 24 and layer.kernel_size == 3
    (layer,) = of_heads(heads, *square(1)[:4], *square(1)[5:]).layers  # no (0, 0)
    assert len(layer.covered) == 8 and layer.kernel_size == 0


def test_duplicates_count_once(heads):
    twins = [heads.dirac((0, 1), GRID)] * 3 + [heads.dirac((0, 0), GRID)]
    (layer,) = of_heads(heads, *twins, heads.uniform(GRID)).layers
    assert layer.num_heads == 5
    assert layer.covered == ((0, 0), (0, 1)) and layer.kernel_size == 1


def test_largest_kernel_is_centred_and_odd():
    assert largest_kernel([]) == 0 and largest_kernel([(0, 0)]) == 1
    assert largest_kernel([(0, 0), (0, 1), (1, 0), (1, 1)]) == 1


def test_content_dependence_is_half_the_l1_distance_from_the_mean(heads):
    """Two images look one right, two one left: the mean is half and half, each 1/2."""
    right, left = heads.dirac((0, 1), GRID), heads.dirac((0, -1), GRID)
    uniform = heads.uniform(GRID)
    probs = np.stack([[right, uniform], [left, uniform], [right, uniform], [left] * 2])
    first, second = head_statistics(heads.maps(probs, num_images=4)).heads
    assert first.content_dependence == pytest.approx(0.5)
    # Mean: 3/4 uniform + 1/4 left. uniform is 1/4 TV away, left 3/4; TV = 1 - 1/72.
    tv = 1 - 1 / 72
    wanted = (3 * tv / 4 + 3 * tv / 4) / 4
    assert second.content_dependence == pytest.approx(wanted, rel=1e-6)
    assert first.best_mass == pytest.approx(0.5) and first.covers
    assert first.expected_offset == pytest.approx((0, 0))
    assert first.mean_distance == 1


def test_streaming_equals_all_at_once(heads):
    """Batches of 1, 4 and 2 images; one layer by content, one by position alone."""
    content = heads.random(7, 3, 6, 7, 6, 7)
    position = heads.random(1, 3, 6, 7, 6, 7, seed=5)
    whole = head_statistics(heads.maps(content, position, num_images=7))
    parts = [
        heads.maps(content[start:stop], position, num_images=stop - start)
        for start, stop in ((0, 1), (1, 5), (5, 7))
    ]
    streamed = head_statistics(parts)
    assert streamed.num_images == whole.num_images == 7
    assert streamed.layers == whole.layers
    covered = covered_offsets(parts, 0.05)
    for layer in head_statistics(parts, 0.05).layers:
        coverage = covered[layer.layer]
        assert len(layer.covered) > 0
        assert (coverage.covered, coverage.kernel_size) == (
            layer.covered,
            layer.kernel_size,
        )
    for one, other in zip(streamed.heads, whole.heads, strict=True):
        assert (one.layer, one.head) == (other.layer, other.head)
        assert one.best_offset == other.best_offset
        for field in ("mean_distance", "entropy", "best_mass", "content_dependence"):
            assert getattr(one, field) == pytest.approx(getattr(other, field), rel=1e-9)
    assert [head.content_dependence for head in whole.heads[3:]] == [0, 0, 0]
    assert [head.content_dependence for head in streamed.heads[3:]] == [0, 0, 0]
    assert min(head.content_dependence for head in whole.heads[:3]) > 0.1


class Batches:
    """Counts how often it is gone through and how many of its batches live at once."""

    def __init__(self, heads, *probs: np.ndarray) -> None:
        self.heads, self.probs = heads, probs
        self.rounds = self.most = 0

    def __iter__(self):
        self.rounds += 1
        made: list[weakref.ref] = []
        for probs in self.probs:
            maps = self.heads.maps(probs, num_images=2)
            made.append(weakref.ref(maps))
            self.most = max(self.most, sum(one() is not None for one in made))
            yield maps
            del maps


def test_batches_pass_twice_only_where_needed_and_few_live(heads):
    position = heads.random(1, 2, 4, 4, 4, 4)
    batches = Batches(heads, *[position] * 5)
    head_statistics(batches)
    assert batches.rounds == 1
    batches = Batches(heads, *[heads.random(2, 2, 4, 4, 4, 4)] * 5)
    head_statistics(batches)
    assert batches.rounds == 2
    assert batches.most <= 2  # the one at hand and the one before it


def test_a_generator_is_refused(heads):
    maps = heads.maps(heads.random(2, 2, 4, 4, 4, 4), num_images=2)
    with pytest.raises(TypeError, match="needed twice"):
        head_statistics(m for m in [maps])


def test_the_class_token_has_a_column_of_its_own(heads):
    """3/4 of a row to the class token; the rest, renormalised, is a Dirac head."""
    patches = heads.dirac((1, 0), GRID) / 4
    mass = np.full((1, 1, *GRID), 0.75, np.float32)
    mass[:, :, :2] = 0  # of queries at the border, which do not count
    maps = heads.maps(patches[None, None], class_mass=[mass])
    (head,) = head_statistics(maps).heads
    assert head.class_mass == 0.75
    assert head.best_mass == 1 and head.expected_offset == (1, 0) and head.entropy == 0


def as_taps(dense: np.ndarray, size: int) -> np.ndarray:
    """[N, H, W, H, W] as SAN's [1, H, W, T, G]: what lies in the window of a query."""
    num_heads, height, width = dense.shape[:3]
    taps = np.zeros((1, height, width, size * size, num_heads), np.float32)
    for i in range(height):
        for j in range(width):
            for t in range(size * size):
                k, n = i + t // size - size // 2, j + t % size - size // 2
                if 0 <= k < height and 0 <= n < width:
                    taps[0, i, j, t] = dense[:, i, j, k, n]
    return taps


@pytest.mark.parametrize("size", [3, 5])
def test_taps_are_offsets(heads, size):
    """The same as the dense grid that is 0 outside the windows; R = 2 >= p."""
    dense = heads.random(3, *GRID, *GRID)
    for i in range(GRID[0]):
        for j in range(GRID[1]):
            rows = np.abs(np.arange(GRID[0]) - i)[:, None] > size // 2
            columns = np.abs(np.arange(GRID[1]) - j)[None] > size // 2
            dense[:, i, j, rows | columns] = 0
    dense /= dense.sum(axis=(-2, -1), keepdims=True)
    grid = head_statistics(heads.maps(dense[None]))
    taps = head_statistics(heads.maps(as_taps(dense, size), kind="taps"))
    scales = {"num_keys": 0, "uniform_distance": 0.0}  # of the window, of the grid
    assert [dataclasses.replace(layer, **scales) for layer in taps.layers] == [
        dataclasses.replace(layer, **scales) for layer in grid.layers
    ]
    for one, other in zip(taps.heads, grid.heads, strict=True):
        assert one.best_offset == other.best_offset
        assert one.expected_offset == pytest.approx(other.expected_offset, abs=1e-6)
        for field in ("mean_distance", "entropy", "best_mass"):
            assert getattr(one, field) == pytest.approx(getattr(other, field), rel=1e-5)


def test_a_window_wider_than_the_radius_keeps_its_distance_from_the_border(heads):
    """7 x 7 taps on 8 x 8: R = 2, p = 3; a tap at 3 is no candidate, but counts."""
    weights = np.zeros((1, 8, 8, 49, 2), np.float32)
    weights[..., 3 * 7 + 6, 0] = 1  # offset (0, 3)
    weights[..., 5 * 7 + 1, 1] = 1  # offset (2, -2)
    weights[:, :3] = weights[:, :, :3] = 1 / 49  # reflected: does not count
    weights[:, 5:] = weights[:, :, 5:] = 1 / 49
    table = head_statistics(heads.maps(weights, kind="taps"))
    assert table.layers[0].num_queries == 4 and table.layers[0].radius == 2
    offsets = [np.hypot(row, col) for row in range(-3, 4) for col in range(-3, 4)]
    assert table.layers[0].num_keys == 49
    assert table.layers[0].uniform_distance == pytest.approx(np.mean(offsets))
    far, near = table.heads
    assert far.expected_offset == (0, 3) and far.best_mass == 0 and not far.covers
    assert near.best_offset == (2, -2) and near.best_mass == 1


def test_patchwise_weights_become_shares(heads):
    weights = np.zeros((1, 6, 6, 9, 2), np.float32)
    weights[..., 5, 0], weights[..., 3, 0] = -3.0, 1.0  # (0, 1) and (0, -1)
    table = head_statistics(heads.maps(weights, kind="taps", softmaxed=False))
    assert table.shares
    head, nothing = table.heads
    assert head.best_offset == (0, 1) and head.best_mass == 0.75
    assert head.expected_offset == (0, 0.5) and head.mean_distance == 1
    assert nothing.entropy == pytest.approx(math.log(9))  # all 0: equal shares


def test_small_grids(heads):
    with pytest.raises(UserError, match="its largest grid has 2 x 2 pixels"):
        of_heads(heads, heads.uniform((2, 2)))
    small, large = heads.uniform((2, 2)), heads.dirac((0, 1), (4, 4))
    table = head_statistics(heads.maps(small[None, None], large[None, None]))
    assert table.left_out == ("layer 1",)
    assert [layer.layer for layer in table.layers] == ["layer 2"]
    assert [head.layer for head in table.heads] == ["layer 2"]


def test_a_layer_without_heads_covers_nothing(heads):
    pruned = np.zeros((1, 0, *GRID, *GRID), np.float32)
    whole = heads.dirac((0, 0), GRID)[None, None]
    table = head_statistics(heads.maps(pruned, whole))
    assert [layer.num_heads for layer in table.layers] == [0, 1]
    assert [layer.kernel_size for layer in table.layers] == [0, 1]


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.5, math.nan])
def test_a_threshold_is_a_share(heads, threshold):
    with pytest.raises(UserError, match="threshold"):
        of_heads(heads, heads.uniform(GRID), threshold=threshold)


def test_no_images_are_refused():
    with pytest.raises(UserError, match="no images"):
        head_statistics([])
