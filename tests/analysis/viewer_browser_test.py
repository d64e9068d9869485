"""The viewer's page in a real browser, opened from disk: what it draws and says."""

import numpy as np
import pytest
from viewer_page import (
    GRID,
    assert_shows,
    assert_viridis,
    colours,
    grid_maps,
    image_point,
    point,
    query,
    settle,
    softmaxed,
    tap_maps,
)

from attn_cnn_jax.analysis.pictures import average_attention
from attn_cnn_jax.analysis.viewer import write_viewer
from attn_cnn_jax.analysis.viewer.encode import escape

HOSTILE = "</script><img src=x onerror=document.title='taken'> \u20ac\u65e5"


def test_a_page_gives_back_all_bytes(browser, tmp_path):
    """Every pair of two bytes, and what would end a script or begin a comment."""
    path = tmp_path / "viewer.html"
    write_viewer(path, [grid_maps()], title="bytes")
    raw = b"</script><!--<script>\r\r\n\0--></SCRIPT >="
    raw += bytes(np.indices((256, 256), np.uint8).reshape(2, -1).T) + b"\r<"
    text = b'<script type="text/plain" id="bytes">%b</script><main>' % escape(raw)
    path.write_bytes(path.read_bytes().replace(b"<main>", text))
    page = browser.new_page()
    page.goto(path.as_uri())
    found = page.evaluate(
        '[...unescaped(document.getElementById("bytes").textContent)]'
    )
    page.close()
    np.testing.assert_array_equal(found, list(raw))


def test_a_server_that_says_another_encoding_is_told(browser, tmp_path):
    write_viewer(tmp_path / "viewer.html", [grid_maps()], title="served")
    page = browser.new_page()
    header = {"content-type": "text/html; charset=utf-8"}
    body = (tmp_path / "viewer.html").read_bytes()
    page.route("**", lambda route: route.fulfill(headers=header, body=body))
    page.goto("http://viewer.test/")
    assert "UTF-8" in page.inner_text("#problem")
    page.close()


@pytest.mark.parametrize("ratio", [1, 1.5])
def test_maps_are_those_that_were_written(opened, ratio):
    maps = grid_maps()
    page = opened(maps, device_scale_factor=ratio)
    assert page.title() == "Attention"
    assert "Run a_run, epoch 1.5 (step 300)." == page.inner_text("#about")
    page.mouse.click(*image_point(page, 1, 3))
    settle(page)
    assert query(page) == [1, 3]
    for cell, (layer, head) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]):
        expected = maps.probs[layer][0, head, 1, 3]
        assert_shows(page, cell, expected)
        assert_viridis(colours(page, cell), expected / expected.max())


def test_another_image_shows_its_own_maps(opened):
    maps = grid_maps()
    page = opened(maps)
    page.get_by_role("radio", name="test image 8 (ship)").check(force=True)
    settle(page)
    for cell, head in enumerate(range(3)):
        assert_shows(page, cell, maps.probs[0][1, head, 2, 2])
    assert_shows(page, 3, maps.probs[1][0, 0, 2, 2])
    pixels = page.evaluate(
        "() => [...document.getElementById('image').getContext('2d')"
        ".getImageData(2, 2, 1, 1).data].slice(0, 3)"
    )
    assert pixels == maps.images[1, 0, 0].tolist()


def test_the_query_moves_by_drag_keys_and_numbers(opened):
    maps = grid_maps()
    page = opened(maps)
    page.mouse.move(*image_point(page, 0, 0))
    page.mouse.down()
    for stop in [(0, 1), (2, 3), (3, 4)]:
        page.mouse.move(*image_point(page, *stop))
        assert query(page) == list(stop)
    page.mouse.move(0, 0)  # outside: the nearest pixel
    assert query(page) == [0, 0]
    page.mouse.up()
    page.mouse.move(*image_point(page, 2, 2))
    assert query(page) == [0, 0]
    keys = ["Down", "Down", "Right", "Up", "Left", "Left"]
    places = [[1, 0], [2, 0], [2, 1], [1, 1], [1, 0], [1, 0]]
    page.focus("#image")
    for key, place in zip(keys, places, strict=True):
        page.keyboard.press(f"Arrow{key}")
        assert query(page) == place
    page.keyboard.press("End")
    assert query(page) == [1, 4]
    page.fill("#row", "3")
    page.press("#row", "Enter")
    page.fill("#column", "99")
    page.press("#column", "Enter")
    settle(page)
    assert query(page) == [3, 4] and page.input_value("#column") == "4"
    assert_shows(page, 1, maps.probs[0][0, 1, 3, 4])


def test_a_number_that_is_being_typed_stays(opened):
    """The drawing of the move before it may come late."""
    page = opened(grid_maps())
    page.evaluate(
        "() => { window.requestAnimationFrame = draw => setTimeout(draw, 200) }"
    )
    page.focus("#image")
    page.keyboard.press("End")
    assert page.input_value("#column") == "4"
    page.fill("#row", "3")
    page.wait_for_timeout(400)
    page.press("#row", "Enter")
    assert query(page) == [3, 4]


def test_hovering_says_head_key_offset_and_probability(opened):
    masses = tuple(np.full((*n, *GRID), 0.25, np.float32) for n in [(2, 3), (1, 2)])
    maps = grid_maps(class_mass=masses)
    page = opened(maps)
    page.mouse.move(*point(page, 2, 0, 3))  # the query is at (2, 2)
    lines = page.inner_text("#tip").split("\n")
    assert lines[:2] == ["layer 1, head 3", "key (0, 3), offset (−2, +1)"]
    (probability,) = maps.probs[0][0, 2, 2, 2, 0, 3:4]
    words = lines[2].removeprefix("probability ").replace("−", "-")
    largest = maps.probs[0][0, 2, 2, 2].max()
    assert abs(float(words) - probability) <= largest / 255 + 0.01 * probability
    assert lines[3] == "class token 0.250"
    page.focus("#image")
    page.keyboard.press("ArrowUp")
    settle(page)
    assert "key (0, 3), offset (−1, +1)" in page.inner_text("#tip")
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()


def test_logarithm_and_a_shared_range(opened):
    maps = grid_maps()
    page = opened(maps)
    shown = [maps.probs[0][0, i, 2, 2] for i in range(3)]
    shown += [maps.probs[1][0, i, 2, 2] for i in range(2)]
    top = max(probs.max() for probs in shown)
    page.select_option("#range", "shared")
    settle(page)
    for cell, probs in enumerate(shown):
        assert_viridis(colours(page, cell), probs / top)
    assert f"{top:#.2g}" in page.locator("#ticks span").all_inner_texts()
    page.select_option("#scale", "log")
    settle(page)
    for cell, probs in enumerate(shown):
        big = probs.ravel() > 0.02 * probs.max()  # there 8 bits are fine enough
        shares = 1 + np.log10(probs.ravel()[big] / top) / 4
        assert_viridis(colours(page, cell)[big], shares)
    assert "10⁴" not in page.inner_text("#ticks")
    page.select_option("#range", "own")
    settle(page)
    assert "10⁴" in page.inner_text("#ticks")


def test_average_attention_is_that_of_the_exact_arrays(opened):
    maps = grid_maps()
    page = opened(maps)
    page.select_option("#show", "average")
    settle(page)
    for head in range(3):
        expected = average_attention(maps.probs[0][0])[head]
        assert_shows(page, head, expected)
        assert_viridis(colours(page, head), expected / expected.max())
    page.mouse.move(*point(page, 1, 3, 1))
    tip = page.inner_text("#tip")
    assert "pixel (3, 1)" in tip and "Average Attention 0." in tip
    assert "offset" not in tip


def test_the_slider_goes_through_the_checkpoints(opened):
    early, late = grid_maps(0, step=0, epoch=0.0), grid_maps(50, step=1400, epoch=50.0)
    page = opened(early, late)
    assert page.inner_text("#checkpoint-name") == "epoch 50 (step 1,400)"
    assert_shows(page, 0, late.probs[0][0, 0, 2, 2])
    page.focus("#checkpoint")
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert page.inner_text("#checkpoint-name") == "epoch 0 (step 0)"
    assert_shows(page, 0, early.probs[0][0, 0, 2, 2])
    assert_shows(page, 4, early.probs[1][0, 1, 2, 2])


def test_a_single_checkpoint_has_no_slider(opened):
    assert opened(grid_maps()).locator("#checkpoint").is_hidden()


@pytest.mark.parametrize("softmaxed", [True, False])
def test_taps_are_offsets(opened, softmaxed):
    maps = tap_maps(softmaxed=softmaxed)
    page = opened(maps)
    page.mouse.click(*image_point(page, 0, 4, (6, 6)))
    settle(page)
    for plane in range(2):
        assert_shows(page, plane, maps.probs[0][0, 0, 4, :, plane])
        assert_shows(page, 2 + plane, maps.probs[1][0, 0, 2, :, plane])
    assert page.locator("option[value=average]").is_disabled()
    assert "Taps are offsets" in page.inner_text("#maps-help")
    page.mouse.move(*point(page, 1, 0, 2))  # above the border: reflected
    assert "key (1, 5), offset (−1, +1)" in page.inner_text("#tip")
    page.mouse.click(*image_point(page, 5, 5, (6, 6)))
    page.mouse.move(*point(page, 1, 2, 1))
    assert "key (4, 5), offset (+1, 0)" in page.inner_text("#tip")
    page.mouse.click(*image_point(page, 0, 4, (6, 6)))
    settle(page)
    assert page.locator("option[value=log]").is_disabled() is not softmaxed
    shown = maps.probs[0][0, 0, 4, :, 0]
    if softmaxed:
        assert_viridis(colours(page, 0), shown / shown.max())
    else:
        found = colours(page, 0).astype(int)
        clear = np.abs(shown) > 0.1 * np.abs(shown).max()
        orange = found[:, 0] > found[:, 2]
        np.testing.assert_array_equal(orange[clear], (shown > 0)[clear])


def test_keys_choose_a_head_and_words_say_its_strongest_key(opened):
    maps = grid_maps()
    page = opened(maps)
    page.focus("#maps")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)  # layer 2 has two heads
    settle(page)
    probs = maps.probs[1][0, 1, 2, 2]
    row, column = map(int, np.unravel_index(probs.argmax(), GRID))
    page.locator("#status", has_text="layer 2, head 2").wait_for()
    said = page.inner_text("#status")
    assert said.startswith("Query pixel: row 2, column 2.")
    assert f"key ({row}, {column})" in said
    assert float(said.rsplit("probability ")[1].rstrip(".")) == pytest.approx(
        float(probs.max()), rel=0.01
    )
    page.locator("#strongest summary").click()
    page.wait_for_selector("#strongest tbody tr")
    cells = page.locator("#strongest tbody tr").nth(4).locator("td").all_inner_texts()
    assert cells[:3] == ["layer 2", "2", f"({row}, {column})"]


def test_everything_can_be_reached_by_tab(opened):
    page = opened(grid_maps(0), grid_maps(50))
    reached = set()
    for _ in range(18):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.name"
                " || document.activeElement.tagName"
            )
        )
    names = {"image", "row", "column", "checkpoint", "play", "show", "scale", "range"}
    names |= {"maps", "save-png", "save-svg"}
    assert names | {"SUMMARY"} <= reached
    unnamed = "[role=application]:not([aria-label]), [role=img]:not([aria-label])"
    assert page.locator(unnamed).count() == 0
    assert page.locator("#status").get_attribute("role") == "status"


def test_names_stay_text(opened):
    maps = grid_maps(names=(HOSTILE, HOSTILE), layers=(HOSTILE, "layer 2"), run=HOSTILE)
    page = opened(maps, title=HOSTILE)
    assert page.title() == HOSTILE == page.inner_text("h1")
    assert page.locator("img").count() == 0
    assert page.inner_text("#image-name") == HOSTILE
    assert page.locator(".thumbnail").first.get_attribute("title") == HOSTILE
    page.mouse.move(*point(page, 0, 1, 1))
    assert page.inner_text("#tip").startswith(HOSTILE)


def test_a_layer_without_heads_and_many_planes_are_shown(opened):
    none = np.zeros((2, 0, *GRID, *GRID), np.float32)
    probs = softmaxed((2, 20, *GRID), 20, 3).reshape(2, 20, *GRID, *GRID)
    page = opened(grid_maps(probs=(none, probs)))
    assert_shows(page, 19, probs[0, 19, 2, 2])
    assert_viridis(colours(page, 19), probs[0, 19, 2, 2] / probs[0, 19, 2, 2].max())


@pytest.mark.parametrize(
    "heads", [(3, 9), (0, 3, 9), (9, 0, 3), (3, 20), (20, 3), (0, 3)]
)
def test_every_column_has_its_number(opened, heads):
    """All that is written on the canvas: above each column its number, once."""
    names = tuple(f"layer {i + 1}" for i in range(len(heads)))
    probs = tuple(
        softmaxed((1, n, *GRID), 20, i).reshape(1, n, *GRID, *GRID)
        for i, n in enumerate(heads)
    )
    page = opened(grid_maps(layers=names, probs=probs))
    cells, written = page.evaluate(
        """() => {
          const [written, proto] = [[], CanvasRenderingContext2D.prototype];
          const write = proto.fillText;
          proto.fillText = function (text, x, y, ...rest) {
            if (this.canvas.id === "maps") written.push([text, x, y]);
            write.call(this, text, x, y, ...rest);
          };
          attentionViewer.paint();
          proto.fillText = write;
          return [attentionViewer.cells, written];
        }"""
    )
    numbers = [(t, x, y) for t, x, y in written if t.removeprefix("head ").isdigit()]
    columns = min(max(heads), 16)
    top = min(cell["y"] for cell in cells if cell["layer"] == cells[0]["layer"])
    for cell in cells:
        left, right = cell["x"], cell["x"] + GRID[1] * cell["zoom"]["single"]
        above = [t for t, x, y in numbers if left < x < right and y <= cell["y"]]
        said = {int(text.removeprefix("head ")) for text in above}
        assert cell["head"] + 1 in said
    assert numbers[0][0] == "head 1" and numbers[0][2] < top
    assert len({(x, y) for _, x, y in numbers}) == len(numbers)
    if max(heads) <= 16:
        assert len(numbers) == columns and len({y for *_, y in numbers}) == 1


def test_a_narrow_page_fits(opened):
    probs = softmaxed((1, 16, *GRID), 20, 3).reshape(1, 16, *GRID, *GRID)
    maps = grid_maps(probs=(probs, probs))
    page = opened(maps, viewport={"width": 400, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_moves_are_painted_and_their_times_told(opened, measured):
    """200 moves of 6 x 9 heads on 16 x 16; the last is checked, no time asserted."""
    names = tuple(f"layer {i + 1}" for i in range(6))
    probs = tuple(
        softmaxed((1, 9, 16, 16), 256, i).reshape(1, 9, 16, 16, 16, 16)
        for i in range(6)
    )
    page = opened(grid_maps(layers=names, probs=probs))
    paints, frames = page.evaluate(
        """async () => {
          const frame = () => new Promise(requestAnimationFrame);
          const [paints, frames] = [[], []];
          let last = await frame();
          for (let move = 0; move < 200; move++) {
            attentionViewer.state.query = [(7 * move) % 16, (3 * move) % 16];
            attentionViewer.paint();
            paints.push(attentionViewer.paintMilliseconds);
            const now = await frame();
            frames.push(now - last);
            last = now;
          }
          return [paints, frames];
        }"""
    )
    for name, times in (("painting", paints), ("frame to frame", frames)):
        measured(name, f"median {np.median(times):.1f} ms, longest {max(times):.1f} ms")
    row, column = 7 * 199 % 16, 3 * 199 % 16
    settle(page)
    assert_shows(page, 53, probs[5][0, 8, row, column])
    shown = probs[5][0, 8, row, column]
    assert_viridis(colours(page, 53), shown / shown.max())
