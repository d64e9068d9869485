"""Two checkpoints of the viewer beside each other, of one run or of two."""

import pytest
from viewer_page import (
    GRID,
    SIZES,
    assert_shows,
    assert_viridis,
    colours,
    grid_maps,
    image_point,
    settle,
    softmaxed,
)

from attn_cnn_jax.analysis.viewer import RunFacts


def two_epochs():
    early, late = grid_maps(0, step=0, epoch=0.0), grid_maps(50, step=1400, epoch=50.0)
    return early, late


def cell_of(page, layer: int, head: int, side: int) -> int:
    return page.evaluate("place => cellAt(...place)", [layer, head, side])


def assert_both(page, late, early, image=0, query=(2, 2)) -> None:
    for side, maps in enumerate((late, early)):
        for layer, heads in enumerate((3, 2)):
            probs = maps.probs[layer][image if len(maps.probs[layer]) > 1 else 0]
            for head in range(heads):
                shown = probs[(head, *query)]
                cell = cell_of(page, layer, head, side)
                assert_shows(page, cell, shown)
                assert_viridis(colours(page, cell), shown / shown.max())


@pytest.mark.parametrize("size", SIZES)
def test_a_second_checkpoint_is_shown_beside_the_first(opened, size):
    early, late = two_epochs()
    page = opened(early, late, **SIZES[size])
    page.select_option("#beside", label="epoch 0 (step 0)")
    settle(page)
    assert_both(page, late, early)
    page.mouse.move(*image_point(page, 1, 3))
    page.get_by_role("radio", name="test image 8 (ship)").check(force=True)
    settle(page)
    query = page.evaluate("attentionViewer.state.query")
    assert_both(page, late, early, image=1, query=tuple(query))
    width = SIZES[size]["viewport"]["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("() => { change({ beside: -1 }); paint(); }")  # before it has read
    settle(page)
    assert page.evaluate("attentionViewer.cells.length") == 5


def test_the_view_with_two_checkpoints_is_a_link(opened):
    early, late = two_epochs()
    page = opened(early, late, at="#beside=0.a_run&head=2.1")
    assert_both(page, late, early)
    assert page.inner_text("#chosen-name") == "layer 2, head 1"
    page.select_option("#beside", label="nothing beside")
    settle(page)
    assert page.url.endswith("#head=2.1")
    assert page.inner_text("#chosen-name") == "layer 2, head 1"
    page.go_back()
    page.wait_for_function("attentionViewer.cells.length === 10")
    assert page.input_value("#beside") == "0"


@pytest.mark.parametrize("heads", [1, 9])
def test_keys_go_to_the_maps_beside(opened, heads):
    """Nine heads twice are too wide for a row: they stand below each other."""
    layers = [
        softmaxed((1, heads, *GRID), 20, i).reshape(1, heads, *GRID, *GRID)
        for i in range(2)
    ]
    maps = [grid_maps(probs=tuple(layers), step=i, epoch=float(i)) for i in range(2)]
    page = opened(*maps, at="#beside=0.a_run", viewport={"width": 700, "height": 900})
    across = page.evaluate("layout.across")
    assert across is (heads == 1)
    page.focus("#maps")
    page.keyboard.press("ArrowRight" if across else "ArrowDown")
    settle(page)
    assert page.inner_text("#chosen-name") == "layer 1, head 1, epoch 0"
    page.keyboard.press("ArrowDown")
    settle(page)
    expected = "layer 2, head 1, epoch 0" if across else "layer 2, head 1"
    assert page.inner_text("#chosen-name") == expected
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft" if across else "ArrowUp")
    settle(page)
    assert page.inner_text("#chosen-name") == "layer 1, head 1"


def test_another_run_is_beside_from_the_start(opened):
    """One whose first layer knows no image, beside one whose first layer does."""
    late = grid_maps(50, step=1400, epoch=50.0)
    first, second = grid_maps(7).probs
    other = grid_maps(probs=(first[:1], second), run="<i>other</i>", step=9, epoch=3.0)
    page = opened(
        other,
        grid_maps(0, step=0, epoch=0.0),
        late,
        facts=RunFacts(about="two", accuracies=[0.25, None, 0.5]),
    )
    assert_both(page, late, other)
    about = page.inner_text("#about")
    assert "a_run, epoch 50 (step 1,400), test accuracy 50.0\u00a0%" in about
    assert (
        "beside it <i>other</i>, epoch 3 (step 9), test accuracy 25.0\u00a0%" in about
    )
    assert page.inner_text("#same-words").startswith("The heads of layer 2 attend")
    page.focus("#maps")
    page.keyboard.press("ArrowRight" if page.evaluate("layout.across") else "ArrowDown")
    page.locator("#chosen-name", has_text="layer 1, head 1, <i>other</i>").wait_for()
    page.select_option("#beside", label="a_run, epoch 0 (step 0)")
    page.locator("#chosen-name", has_text="layer 1, head 1, epoch 0").wait_for()
    page.select_option("#beside", label="<i>other</i>, epoch 3 (step 9)")
    page.focus("#checkpoint")  # goes through the run's own checkpoints
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    settle(page)
    assert page.inner_text("#checkpoint-name") == "a_run, epoch 0 (step 0)"
    assert_both(page, grid_maps(0), other)
