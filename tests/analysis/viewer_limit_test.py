"""The viewer below its limit: what it shows where there is no room for all."""

import dataclasses
import re

import pytest
from viewer_page import blocks, description

from attn_cnn_jax.analysis.viewer import write_viewer
from attn_cnn_jax.analysis.viewer.blocks import halving
from attn_cnn_jax.errors import UserError

NUM_IMAGES = 5


@pytest.fixture
def snapshots(heads):
    """Seven checkpoints of three heads, different for each image."""
    drawn = [heads.random(NUM_IMAGES, 3, 4, 4, 4, 4, seed=i) for i in range(7)]
    return [
        dataclasses.replace(
            heads.maps(probs, num_images=NUM_IMAGES), step=20 * i, epoch=10.0 * i
        )
        for i, probs in enumerate(drawn)
    ]


def written(path, checkpoints, **options):
    """What `write_viewer` says, what the page says, and the ids of its blocks."""
    result = write_viewer(path, checkpoints, title="limit", **options)
    page = path.read_bytes()
    assert result.size == len(page)
    return result, description(page.decode("ascii", "ignore")), set(blocks(page))


def test_checkpoints_are_taken_from_the_ends_inwards():
    assert halving(1) == [0] and halving(2) == [1, 0]
    assert halving(7) == [6, 0, 3, 1, 4, 2, 5]
    assert sorted(halving(100)) == list(range(100))


def test_all_is_shown_where_it_fits(snapshots, tmp_path):
    whole, _, _ = written(tmp_path / "whole.html", snapshots)
    # Some 500 bytes are kept for the sentence on what is left out.
    result, _, _ = written(
        tmp_path / "same.html", snapshots, max_bytes=whole.size + 510
    )
    assert result == whole and whole.left_out == ""


@pytest.mark.parametrize("kept", [[60], [0, 60], [0, 30, 60], [0, 10, 30, 60]])
def test_checkpoints_are_left_out_first(snapshots, tmp_path, kept):
    of_these = [maps for maps in snapshots if maps.epoch in kept]
    room = written(tmp_path / "part.html", of_these)[0].size + 900
    result, said, ids = written(tmp_path / "viewer.html", snapshots, max_bytes=room)
    assert result.size <= room
    assert (result.num_images, result.num_checkpoints) == (NUM_IMAGES, len(kept))
    assert [entry["epoch"] for entry in said["checkpoints"]] == kept
    assert ids == {f"image-{i}" for i in range(NUM_IMAGES)} | {
        f"maps-{entry['blocks']}-0-{i}"
        for entry in said["checkpoints"]
        for i in range(NUM_IMAGES)
    }
    epochs = ", ".join(map(str, kept))
    noun = "epochs" if len(kept) > 1 else "epoch"
    sentence = f"the page shows {len(kept)} of 7 checkpoints ({noun} {epochs})."
    assert result.left_out.endswith(sentence) and result.left_out in said["notes"]
    assert f"{room / 1e6:g} MB (--viewer_max_mb)" in result.left_out


def test_images_are_left_out_where_the_last_checkpoint_alone_is_too_large(
    snapshots, tmp_path
):
    last = [snapshots[-1]]
    sizes = [
        len(text)
        for name, text in blocks_as_written(tmp_path / "a.html", last)
        if name != "image-4"
    ]
    room = written(tmp_path / "last.html", last)[0].size - max(sizes)
    result, said, ids = written(tmp_path / "b.html", snapshots, max_bytes=room)
    assert result.size <= room and 0 < result.num_images < NUM_IMAGES
    assert len(said["names"]) == result.num_images
    shown = range(result.num_images)
    assert ids == {f"{kind}-{i}" for kind in ("image", "maps-6-0") for i in shown}
    assert (
        f"the first {result.num_images} of 5 images and 1 of 7 checkpoints (epoch 60)"
        in result.left_out
    )


def blocks_as_written(path, checkpoints):
    """(id, text) of each block."""
    write_viewer(path, checkpoints, title="sizes")
    pattern = rb'<script type="text/plain" id="(\S+)">([^<]*)</script>'
    return [(n.decode(), t) for n, t in re.findall(pattern, path.read_bytes())]


def test_a_limit_below_one_image_is_refused(snapshots, tmp_path):
    path = tmp_path / "viewer.html"
    path.write_text("of an earlier time")
    with pytest.raises(UserError) as error:
        write_viewer(path, snapshots, title="large", max_bytes=20_000)
    assert "0.02 MB of --viewer_max_mb: raise it" in str(error.value)
    (needed,) = re.findall(r"would take ([\d.]+) MB with one image", str(error.value))
    assert path.read_text() == "of an earlier time"
    assert [p.name for p in tmp_path.iterdir()] == ["viewer.html"]
    write_viewer(path, snapshots, title="large", max_bytes=int(1e6 * float(needed)))
