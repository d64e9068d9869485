"""The view of the viewer's page: its sizes, its link, what it says of the run."""

import dataclasses
import itertools

import numpy as np
import pytest
from PIL import Image
from viewer_page import (
    GRID,
    SIZES,
    assert_shows,
    colours,
    grid_maps,
    image_point,
    query,
    settle,
    softmaxed,
    tap_maps,
)

from attn_cnn_jax.analysis.viewer import RunFacts, write_viewer


def six_layers_of_nine():
    """Heads of 16 x 16 pixels, which know no image."""
    probs = [
        softmaxed((1, 9, 16, 16), 256, seed).reshape(1, 9, *4 * (16,))
        for seed in range(6)
    ]
    names = tuple(f"layer {i + 1}" for i in range(6))
    return grid_maps(layers=names, probs=tuple(probs))


@pytest.fixture
def facts():
    predictions = np.full((2, 4), 0.01, np.float32)
    predictions[0, :] = 0.02, 0.7, 0.2, 0.08
    predictions[1, :] = 0.9995, 0.0005, 0, 0
    return RunFacts(
        about="self_attention, quadratic on digits",
        class_names=("cat", "dog", "ship", "<b>frog</b>"),
        labels=(3, None),
        predictions=[predictions],
        accuracies=[0.8712],
        notes=("Maps are of evaluation mode.",),
    )


@pytest.mark.parametrize("size", SIZES)
def test_image_and_maps_are_on_one_screen(opened, size):
    options = SIZES[size]
    page = opened(six_layers_of_nine(), **options)
    width, height = options["viewport"]["width"], options["viewport"]["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("#image", "#maps"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        assert box["y"] >= 0 and box["y"] + box["height"] <= height
    zooms = page.evaluate("attentionViewer.cells.map(cell => cell.zoom.single)")
    assert len(zooms) == 54 and min(zooms) * 16 >= 28


def test_the_chosen_of_many_images_is_in_sight(opened):
    images = np.zeros((40, 8, 10, 3), np.uint8)
    names = tuple(f"image {i}" for i in range(40))
    probs = grid_maps().probs[1]
    maps = grid_maps(probs=(probs, probs), images=images, names=names)
    page = opened(maps, at="#image=30")
    strip = page.locator("#thumbnails").bounding_box()
    chosen = page.locator(".thumbnail:has(:checked)").bounding_box()
    assert page.inner_text("#image-name") == "image 29"
    assert strip["x"] <= chosen["x"]
    assert chosen["x"] + chosen["width"] <= strip["x"] + strip["width"]


@pytest.mark.parametrize("size", SIZES)
def test_ticks_stand_apart(opened, size):
    page = opened(grid_maps(), **SIZES[size])
    for scale in ("linear", "log"):
        for reach in ("own", "shared"):
            page.select_option("#scale", scale)
            page.select_option("#range", reach)
            settle(page)
            spans = page.locator("#ticks span")
            boxes = [spans.nth(i).bounding_box() for i in range(spans.count())]
            boxes.sort(key=lambda box: box["x"])
            assert len(boxes) >= 2
            for one, other in zip(boxes, boxes[1:], strict=False):
                assert one["x"] + one["width"] + 3 <= other["x"]
            bar = page.locator("#legend").bounding_box()
            assert boxes[0]["x"] >= bar["x"] - 1
            end = boxes[-1]["x"] + boxes[-1]["width"]
            assert end <= bar["x"] + bar["width"] + 1


def test_the_page_says_what_the_network_says(opened, facts):
    page = opened(grid_maps(), facts=facts)
    about = page.inner_text("#about")
    assert "self_attention, quadratic on digits, epoch 1.5 (step 300)" in about
    assert "test accuracy 87.1\u00a0%. Maps are of evaluation mode." in about
    assert page.inner_text("#prediction") == (
        "Predicted: dog (70.0\u00a0%), then ship (20.0\u00a0%). "
        "True label: <b>frog</b>."
    )
    page.get_by_role("radio", name="test image 8 (ship)").check(force=True)
    settle(page)
    said = page.inner_text("#prediction")
    assert said.startswith("Predicted: cat (>\u00a099.9\u00a0%)")
    assert "True label" not in said  # an image of the user's own has none


def test_the_page_says_why_another_image_changes_no_map(opened):
    maps = six_layers_of_nine()
    page = opened(maps)
    assert page.inner_text("#same-words").startswith("All heads attend by position")
    page.click("#see")
    settle(page)
    assert page.evaluate("attentionViewer.state.show") == "seen"
    assert page.locator("#same").is_hidden()
    content = opened(grid_maps())
    words = content.inner_text("#same-words")
    assert words.startswith("The heads of layer 2 attend by position alone")


def patches(maps) -> np.ndarray:
    """Images of one colour for each key, so that no edge is near a key's middle."""
    drawn = np.random.default_rng(5).integers(0, 256, (2, *GRID, 3), np.uint8)
    return drawn.repeat(2, 1).repeat(2, 2)


@pytest.mark.parametrize("ratio", [1, 2])
def test_what_a_head_sees_is_the_image_weighted_by_its_attention(opened, ratio):
    maps = grid_maps()
    maps = dataclasses.replace(maps, images=patches(maps))
    page = opened(maps, device_scale_factor=ratio)
    page.select_option("#show", "seen")
    page.get_by_role("radio", name="test image 8 (ship)").check(force=True)
    settle(page)
    pixels = maps.images[1, ::2, ::2].reshape(-1, 3)
    for cell, probs in [(1, maps.probs[0][1, 1, 2, 2]), (4, maps.probs[1][0, 1, 2, 2])]:
        share = (probs / probs.max()).reshape(-1, 1)
        expected = share * pixels + (1 - share) * 0x77
        assert np.abs(colours(page, cell) - expected).max() <= 4
        assert_shows(page, cell, probs)


def test_an_overlay_tints_the_image_where_the_attention_is(opened):
    maps = grid_maps()
    maps = dataclasses.replace(maps, images=patches(maps))
    page = opened(maps)
    page.select_option("#show", "overlay")
    settle(page)
    share = (maps.probs[0][0, 0, 2, 2] / maps.probs[0][0, 0, 2, 2].max()).ravel()
    pixels = maps.images[0, ::2, ::2].reshape(-1, 3)
    moved = np.abs(colours(page, 0) - pixels.astype(float))
    import matplotlib

    full = 255 * matplotlib.colormaps["viridis"](share)[:, :3]
    alpha = (40 + 160 * share[:, None]) / 255
    assert np.abs(moved - alpha * np.abs(full - pixels)).max() <= 5


@pytest.mark.parametrize("softmaxed", [True, False])
def test_what_a_plane_sees_lies_at_its_taps(opened, softmaxed):
    maps = tap_maps(softmaxed=softmaxed)
    blank = np.random.default_rng(7).integers(0, 256, (2, 6, 6, 3), np.uint8)
    maps = dataclasses.replace(maps, images=blank)
    page = opened(maps)
    page.mouse.move(*image_point(page, 0, 4, (6, 6)))
    page.select_option("#show", "seen")
    settle(page)
    weights = np.abs(maps.probs[0][0, 0, 4, :, 1])
    share = (weights / weights.max())[:, None]
    rows, columns = [1, 0, 1], [3, 4, 5]  # reflected above the border
    pixels = blank[0][np.ix_(rows, columns)].reshape(-1, 3)
    expected = share * pixels + (1 - share) * 0x77
    assert np.abs(colours(page, 1) - expected).max() <= 5


@pytest.mark.parametrize("size", SIZES)
def test_a_link_restores_the_view(opened, size):
    early, late = grid_maps(0, step=0, epoch=0.0), grid_maps(50, step=1400, epoch=50.0)
    page = opened(early, late, **SIZES[size])
    assert "#" not in page.url
    page.get_by_role("radio", name="test image 8 (ship)").check(force=True)
    page.select_option("#show", "overlay")
    page.select_option("#scale", "log")
    page.select_option("#range", "shared")
    page.focus("#checkpoint")
    page.keyboard.press("ArrowLeft")
    page.mouse.click(*image_point(page, 3, 1))
    page.focus("#maps")
    page.keyboard.press("ArrowDown")
    page.wait_for_url("**head=2.1")
    state = page.evaluate("attentionViewer.state")
    address = page.url.partition("#")[2]
    assert address == (
        "image=2&step=0&query=3.1&pinned=1&show=overlay&scale=log&range=shared&head=2.1"
    )
    again = opened(early, late, at=f"#{address}", **SIZES[size])
    assert again.evaluate("attentionViewer.state") == state
    assert again.input_value("#show") == "overlay" and again.input_value("#row") == "3"
    assert again.get_by_role("radio", name="test image 8 (ship)").is_checked()
    assert again.inner_text("#checkpoint-name") == "epoch 0 (step 0)"
    assert_shows(again, 0, early.probs[0][1, 0, 3, 1])


def test_back_and_forward_go_through_the_choices(opened):
    maps = grid_maps()
    page = opened(maps)
    page.get_by_role("radio", name="test image 8 (ship)").check(force=True)
    page.select_option("#show", "seen")
    settle(page)
    page.go_back()
    page.wait_for_function("attentionViewer.state.show === 'map'")
    assert page.input_value("#show") == "map"
    page.go_back()
    page.wait_for_function("attentionViewer.state.image === 0")
    settle(page)
    assert_shows(page, 0, maps.probs[0][0, 0, 2, 2])
    page.go_forward()
    page.wait_for_function("attentionViewer.state.image === 1")
    settle(page)
    assert_shows(page, 0, maps.probs[0][1, 0, 2, 2])


@pytest.mark.parametrize(
    "address",
    [
        "#image=0&step=7&query=9.9&show=none&head=9.9",
        "#image=3&query=1&head=-1.1&show=constructor&scale=x",
        "#query=-1.2&image=1e0&head=1.1.1e9",
        "#%00%ff&&&==<script>",
        "#image=99999999999999999999&query=0x1.0x1",
    ],
)
def test_a_link_that_names_nothing_shows_the_start(opened, address):
    page = opened(grid_maps(), at=address)
    start = opened(grid_maps())
    state = "attentionViewer.state"
    assert page.evaluate(state) == start.evaluate(state)


def test_play_goes_through_the_checkpoints_once(opened):
    maps = [grid_maps(i, step=100 * i, epoch=float(i)) for i in range(3)]
    page = opened(*maps)
    page.evaluate(
        """() => {
          window.names = [];
          const name = document.getElementById("checkpoint-name");
          new MutationObserver(() => names.push(name.textContent))
            .observe(name, { childList: true });
        }"""
    )
    page.get_by_role("button", name="play the checkpoints").click()
    page.get_by_role("button", name="pause").wait_for()
    page.get_by_role("button", name="play the checkpoints").wait_for()
    names = [name for name, _ in itertools.groupby(page.evaluate("names"))]
    assert names == [f"epoch {i} (step {100 * i})" for i in range(3)]
    settle(page)
    assert_shows(page, 0, maps[2].probs[0][0, 0, 2, 2])
    page.get_by_role("button", name="play the checkpoints").click()
    page.get_by_role("button", name="pause").click()
    page.wait_for_timeout(800)
    settle(page)
    assert page.inner_text("#checkpoint-name") == "epoch 0 (step 0)"
    assert query(page) == [2, 2]


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_of_the_users_own_is_seen_by_heads_of_positions_alone(
    opened, facts, tmp_path, channels
):
    """Cut in the middle to 8 x 10 pixels, by the same maps."""
    probs = grid_maps().probs[1]
    images = np.zeros((2, 8, 10, channels), np.uint8)
    page = opened(grid_maps(probs=(probs, probs), images=images), facts=facts)
    assert "True label" in page.inner_text("#prediction")
    wide = np.zeros((40, 90, 3), np.uint8)
    wide[:, 20:45] = 250, 20, 10  # of the middle 50 columns the left half
    wide[:, 45:70] = 20, 10, 250
    name = "<b>mine</b>.png"
    Image.fromarray(wide).save(tmp_path / "mine.png")
    content = (tmp_path / "mine.png").read_bytes()
    page.set_input_files(
        "#own-file", {"name": name, "mimeType": "image/png", "buffer": content}
    )
    page.locator("#image-name", has_text=name).wait_for()
    settle(page)
    found = page.evaluate(
        """() => {
          const context = new OffscreenCanvas(10, 8).getContext("2d");
          context.drawImage(photo, 0, 0);
          return [...context.getImageData(0, 4, 10, 1).data];
        }"""
    )
    found = np.reshape(found, (10, 4))
    colours = [[250, 20, 10], [20, 10, 250]] if channels == 3 else [[88] * 3, [40] * 3]
    np.testing.assert_array_equal(found[[1, 8], :3], colours)
    assert page.locator(".thumbnail").count() == 3
    assert page.text_content("#prediction") == ""
    assert_shows(page, 0, probs[0, 0, 2, 2])
    page.set_input_files(
        "#own-file", {"name": "no.png", "mimeType": "image/png", "buffer": b"GIF8"}
    )
    page.locator("#problem", has_text="no.png cannot be read as an image").wait_for()
    assert page.evaluate("attentionViewer.state.image") == 2
    assert opened(grid_maps()).locator("#own").is_hidden()  # content decides there


def test_the_first_image_needs_only_the_beginning_of_the_file(browser, tmp_path):
    """A browser draws it while it reads the rest, here of a file that was cut."""
    early, late = grid_maps(0, step=0, epoch=0.0), grid_maps(50, step=1400, epoch=50.0)
    path = tmp_path / "viewer.html"
    write_viewer(path, [early, late], title="cut")
    content = path.read_bytes()
    path.write_bytes(
        content[: content.index(b'<script type="text/plain" id="image-1"')]
    )
    page = browser.new_page()
    page.goto(path.as_uri())
    settle(page)
    assert_shows(page, 0, late.probs[0][0, 0, 2, 2])
    assert page.locator("#problem").is_hidden()
    page.evaluate("change({ checkpoint: 0 })")
    page.locator("#problem", has_text="the page ends before maps-0-0-0").wait_for()
    page.close()
