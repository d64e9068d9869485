"""docs/new_dataset.md: its files do what it says, and an entry is all that it takes."""

import json
from pathlib import Path

import jax
import pytest

from attn_cnn_jax import bench, data, models, variants
from attn_cnn_jax.config import base_config, self_attention, with_options
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.results.published import count_parameters
from attn_cnn_jax.run import refuse_misfits

CONFIGS = Path(__file__).parent.parent / "configs"
ADDED = """
from attn_cnn_jax.variants import add_dataset
add_dataset({name!r}, list, image_shape={shape}, num_classes={classes})
"""


@pytest.fixture
def guide(page):
    return page("new_dataset.md")


@pytest.fixture
def tiles(guide):
    """The guide's file, added; its name is forgotten afterwards."""
    path = guide.folder / "photo_tiles.py"
    variants.load(path)
    yield path
    data.DATASETS.pop("photo_tiles", None)


def test_the_commands_do_what_the_guide_says(guide):
    make, test, train, evaluate, measure, row = guide.commands
    done = guide.run(make)
    assert done.returncode == 0, done.stderr
    done = guide.run(f"{test} -q")
    assert "2 passed" in done.stdout, done.stdout
    short = "--config.num_epochs=2 --config.model.num_layers=1"
    done = guide.run(f"{train} {short} --workdir=runs/photo_tiles_seed42")
    assert done.returncode == 0, done.stderr
    done = guide.run(evaluate)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[0])
    assert result["images"] == 416 and result["accuracy"] > 0.7
    (guide.folder / "photo_tiles.npz").unlink()
    done = guide.run(
        f"{measure} --batch_sizes=4 --steps=3 --nolatency --notrain --json"
    )
    assert done.returncode == 0, done.stderr  # measured on random images
    row = row.replace("configs", str(CONFIGS))
    done = guide.run(row)
    assert done.returncode == 2 and "photo_tiles.npz cannot be read" in done.stderr
    also = guide.folder / "also.py"
    also.write_text(ADDED.format(name="also", shape=(8, 8, 3), classes=2))
    row = row.replace(":photo_tiles", ":photo_tiles,also")
    done = guide.run(f"{row} --variant also.py")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "dataset also: its loader returned a value of type list" in done.stderr
    done = guide.run(evaluate.replace("--variant=photo_tiles.py", ""))
    assert done.returncode == 2
    assert "of your own needs --variant=FILE.py" in done.stderr


def test_everything_takes_up_an_entry(tiles):
    config = base_config()
    config.model = self_attention("quadratic_isotropic")
    config.model.update(width=8, num_layers=1, num_heads=2, mlp_dim=8)
    with_options(config, "photo_tiles")
    fields = config.dataset.name, config.dataset.crop_padding, config.dataset.flip
    assert fields == ("photo_tiles", 2, True)
    random = bench._dataset(config.dataset)
    assert (random.image_shape, random.num_classes) == ((16, 16, 3), 2)
    assert (len(random.train), len(random.test)) == (50_000, 10_000)
    assert set(random.train.labels[:100].tolist()) == {0, 1}

    def variables(num_classes):
        model = models.build(config.model, num_classes)
        return jax.eval_shape(
            lambda: models.initial_variables(model, jax.random.key(0), (16, 16, 3))
        )

    fitting = variables(2)
    assert count_parameters(config) == models.count_parameters(fitting)
    refuse_misfits(config, fitting, "state.npz does not fit")
    with pytest.raises(UserError, match="state.npz does not fit: .*class"):
        refuse_misfits(config, variables(3), "state.npz does not fit")


def test_random_images_of_any_size_fit_into_memory(tiles, monkeypatch):
    monkeypatch.setattr(bench, "_MOST_PIXELS", 2**20)
    fields = base_config().dataset
    fields.name = "photo_tiles"
    assert len(bench._dataset(fields).train) == 2**20 // (16 * 16 * 3)


@pytest.mark.parametrize(
    "name, shape, classes, message",
    [
        ("photo_tiles", (8, 8, 3), 2, "a dataset called photo_tiles already"),
        ("cifar10", (8, 8, 3), 2, "a dataset called cifar10 already"),
        ("mine", (8, 8), 2, r"image_shape=\(8, 8\)"),
        ("mine", (8, 8, 0), 2, r"image_shape=\(8, 8, 0\)"),
        ("mine", (8, 8, 3), 0, "num_classes=0"),
    ],
)
def test_what_cannot_be_added_is_refused(tiles, name, shape, classes, message):
    known = dict(data.DATASETS)
    other = tiles.with_name("other.py")
    other.write_text(ADDED.format(name=name, shape=shape, classes=classes))
    with pytest.raises(UserError, match=f"other.py .*{message}"):
        variants.load(other)
    assert known == data.DATASETS


def test_the_same_file_may_be_imported_twice(tiles, monkeypatch):
    monkeypatch.chdir(tiles.parent)
    variants.load(tiles.name)
    assert data.DATASETS["photo_tiles"].crop_padding == 2
