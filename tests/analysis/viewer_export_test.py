"""The viewer's view saved as a file: PNG and SVG show what the page shows."""

import base64
import io
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
from PIL import Image
from viewer_page import SIZES, grid_maps, image_point, settle

SVG = "{http://www.w3.org/2000/svg}"


def saved(page, kind: str) -> tuple[str, bytes]:
    """(name, content) of the file that the button hands to the browser."""
    with page.expect_download() as download:
        page.click(f"#save-{kind}")
    file = download.value
    return file.suggested_filename, file.path().read_bytes()


def maps_corner(page) -> tuple[float, float]:
    """Where the maps begin on the sheet, in pixels of the page."""
    side, top = page.evaluate("[layout.side, sheetSize().top]")
    return 2 * 16 + side, top


@pytest.mark.parametrize(
    "size, show",
    [*((size, "map") for size in SIZES), ("laptop", "seen"), ("phone", "average")],
)
def test_both_files_show_what_the_page_shows(opened, browser, tmp_path, size, show):
    maps = grid_maps()
    page = opened(maps, title="A run", **SIZES[size])
    page.select_option("#show", show)
    page.mouse.move(*image_point(page, 1, 3))
    settle(page)
    name, content = saved(page, "png")
    assert name.startswith("A-run_") and name.endswith("view.png")
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    width, height = page.evaluate("[sheetSize().width, sheetSize().height]")
    assert picture.size == (2 * width, 2 * height)
    if show == "map":
        left, top = maps_corner(page)
        cell = page.evaluate("attentionViewer.cells[1]")
        zoom, probs = cell["zoom"]["single"], maps.probs[0][0, 1, 1, 3]
        found = [
            picture.getpixel(
                (
                    round(2 * (left + cell["x"] + (column + 0.5) * zoom)),
                    round(2 * (top + cell["y"] + (row + 0.5) * zoom)),
                )
            )
            for row in range(4)
            for column in range(5)
        ]
        viridis = matplotlib.colormaps["viridis"]
        expected = 255 * viridis(probs.ravel() / probs.max())[:, :3]
        assert np.abs(np.array(found) - expected).max() <= 8
    _, drawing = saved(page, "svg")
    (tmp_path / "view.svg").write_bytes(drawing)
    assert_look_alike(browser, picture, tmp_path / "view.svg")


def assert_look_alike(browser, picture, drawing) -> None:
    """A browser shows the SVG as the PNG, but for the edges of letters."""
    size = {"width": picture.width // 2, "height": picture.height // 2}
    page = browser.new_page(viewport=size)
    page.goto(drawing.as_uri())
    shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    page.close()
    smaller = picture.resize(shown.size, Image.Resampling.BOX)
    difference = np.abs(np.asarray(shown, float) - np.asarray(smaller, float))
    assert (difference.max(-1) > 60).mean() < 0.02


def test_names_stay_text_in_a_drawing(opened):
    hostile = "</text><script>alert(1)</script>&\"'\u0001\u20ac"
    page = opened(
        grid_maps(names=(hostile, hostile), layers=(hostile, "layer 2")), title=hostile
    )
    name, drawing = saved(page, "svg")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
    root = ElementTree.fromstring(drawing)
    assert {element.tag for element in root} == {
        f"{SVG}{tag}" for tag in ("rect", "text", "image")
    }
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert hostile.replace("\u0001", "\ufffd") in texts


def test_a_drawing_holds_every_map_in_its_own_pixels(opened):
    maps = grid_maps()
    page = opened(maps)
    _, drawing = saved(page, "svg")
    links = [
        i.attrib["href"] for i in ElementTree.fromstring(drawing).iter(f"{SVG}image")
    ]
    assert len(links) == 2 + 5  # the image, the scale, the maps
    content = base64.b64decode(links[2].removeprefix("data:image/png;base64,"))
    found = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).reshape(-1, 3)
    probs = maps.probs[0][0, 0, 2, 2].ravel()
    expected = 255 * matplotlib.colormaps["viridis"](probs / probs.max())[:, :3]
    assert np.abs(found - expected).max() <= 8
