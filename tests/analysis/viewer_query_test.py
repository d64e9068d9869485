"""The query of the viewer's page: how mouse, finger and keys move and pin it."""

import pytest
from viewer_page import GRID, SIZES, assert_shows, grid_maps, image_point, query, settle


def is_pinned(page) -> bool:
    return page.evaluate("attentionViewer.state.pinned")


class Finger:
    """A finger on a page's image, in the browser's own events."""

    def __init__(self, page):
        self.page = page
        self.session = page.context.new_cdp_session(page)

    def touch(self, kind: str, *place: int) -> None:
        """touchStart and touchMove have a place (row, column), touchEnd has none."""
        points = []
        if place:
            points = [dict(zip("xy", image_point(self.page, *place), strict=True))]
        event = {"type": kind, "touchPoints": points}
        self.session.send("Input.dispatchTouchEvent", event)


@pytest.mark.parametrize("size", SIZES)
def test_the_query_follows_the_mouse(opened, size):
    maps = grid_maps()
    page = opened(maps, **SIZES[size])
    for place in [(0, 0), (1, 3), (3, 4), (2, 1)]:
        page.mouse.move(*image_point(page, *place))
        assert query(page) == list(place)
        settle(page)
        assert_shows(page, 1, maps.probs[0][0, 1, *place])
        assert_shows(page, 3, maps.probs[1][0, 0, *place])
    page.mouse.move(0, 0)  # off the image it stays
    assert query(page) == [2, 1] and not is_pinned(page)


@pytest.mark.parametrize("size", SIZES)
def test_a_click_pins_the_query_and_a_second_one_frees_it(opened, size):
    page = opened(grid_maps(), **SIZES[size])
    page.mouse.click(*image_point(page, 1, 3))
    assert query(page) == [1, 3] and is_pinned(page)
    page.mouse.move(*image_point(page, 3, 0))
    assert query(page) == [1, 3]
    assert "pinned" in page.inner_text("#pin-help")
    page.mouse.click(*image_point(page, 3, 0))
    assert query(page) == [3, 0] and not is_pinned(page)
    page.mouse.move(*image_point(page, 0, 4))
    assert query(page) == [0, 4]
    assert "follows the mouse" in page.inner_text("#pin-help")


def test_escape_frees_the_query_from_anywhere(opened):
    page = opened(grid_maps())
    page.mouse.click(*image_point(page, 1, 3))
    page.focus("#maps")
    page.keyboard.press("Escape")
    assert not is_pinned(page)
    page.mouse.move(*image_point(page, 2, 2))
    assert query(page) == [2, 2]


def test_a_drag_is_pinned_where_it_ends(opened):
    page = opened(grid_maps())
    for _ in range(2):  # free, then pinned
        page.mouse.move(*image_point(page, 0, 0))
        page.mouse.down()
        page.mouse.move(*image_point(page, 2, 3))
        page.mouse.up()
        page.mouse.move(*image_point(page, 3, 4))
        assert query(page) == [2, 3] and is_pinned(page)


def test_other_buttons_leave_the_pin(opened):
    page = opened(grid_maps())
    page.mouse.click(*image_point(page, 1, 3), button="right")
    assert not is_pinned(page)


def test_keys_pin_and_free(opened):
    page = opened(grid_maps())
    page.focus("#image")
    for key, pinned in [("Enter", True), ("Space", False), ("Space", True)]:
        page.keyboard.press(key)
        assert is_pinned(page) is pinned
    page.keyboard.press("ArrowLeft")  # keys move what the mouse may not
    assert query(page) == [2, 1] and is_pinned(page)


@pytest.mark.parametrize("size", SIZES)
def test_a_finger_moves_the_query_and_pins_nothing(opened, size):
    maps = grid_maps()
    page = opened(maps, has_touch=True, **SIZES[size])
    page.touchscreen.tap(*image_point(page, 3, 1))
    assert query(page) == [3, 1] and not is_pinned(page)
    finger = Finger(page)
    finger.touch("touchStart", 0, 0)
    for place in [(0, 2), (1, 4), (2, 0)]:
        finger.touch("touchMove", *place)
        settle(page)
        assert query(page) == list(place)
    finger.touch("touchEnd")
    assert not is_pinned(page) and page.evaluate("scrollY") == 0
    assert_shows(page, 0, maps.probs[0][0, 0, 2, 0])


def frames(page) -> list[str]:
    """The colours in which frames are drawn on the image and on the maps."""
    return page.evaluate(
        """() => {
          const [drawn, proto] = [[], CanvasRenderingContext2D.prototype];
          const stroke = proto.strokeRect;
          proto.strokeRect = function (...box) {
            drawn.push(this.canvas.id + " " + this.strokeStyle);
            stroke.apply(this, box);
          };
          attentionViewer.paint();
          proto.strokeRect = stroke;
          return drawn;
        }"""
    )


def test_average_attention_has_no_query(opened):
    page = opened(grid_maps())
    assert "image #ff2d95" in frames(page)
    assert {"maps #000000", "maps #ffffff", "chosen #ffffff"} <= set(frames(page))
    page.select_option("#show", "average")
    settle(page)
    (chosen,) = frames(page)  # around the chosen head
    assert chosen.startswith("maps ")
    page.locator("#which-query", has_text="None: Average Attention").wait_for()
    assert "Query" not in page.inner_text("#status")
    assert page.inner_text("#pin-help") == "Average Attention is over all queries."


def test_a_move_answers_which_query(opened):
    page = opened(grid_maps())
    assert GRID == (4, 5)
    page.mouse.move(*image_point(page, 3, 4))
    page.locator("#which-query", has_text="Pixel (3, 4)").wait_for()
