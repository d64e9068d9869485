"""Images by index, by CIFAR file name, from a file; and what is refused."""

import dataclasses
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from attn_cnn_jax.analysis.images import choose_images
from attn_cnn_jax.data import Dataset, Split
from attn_cnn_jax.errors import UserError


@pytest.fixture
def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 32, 32, 3), np.uint8)
    split = Split(images, np.array([0, 1, 0, 1, 1, 0], np.int32))
    return Dataset(("cat", "dog"), (0.5,) * 3, (0.2,) * 3, split, split)


@pytest.fixture
def gray(dataset) -> Dataset:
    split = Split(dataset.test.images[:, :8, :8, :1], dataset.test.labels)
    return Dataset(dataset.class_names, (0.5,), (0.2,), split, split)


def test_by_index_and_by_range(dataset):
    chosen = choose_images(dataset, ["4", "0-2"])
    assert chosen.indices == (4, 0, 1, 2)
    assert chosen.names[:2] == ("test image 4 (dog)", "test image 0 (cat)")
    np.testing.assert_array_equal(chosen.images, dataset.test.images[[4, 0, 1, 2]])
    assert chosen.notes == ()
    assert chosen.stems == ("test_00004", "test_00000", "test_00001", "test_00002")


def test_by_the_name_of_a_record(dataset):
    """TFDS shuffles; the names of CIFAR's records say the official place."""
    ids = np.array([f"test_{place:05d}" for place in (3, 5, 0, 1, 4, 2)])
    test = dataclasses.replace(dataset.test, ids=ids)
    named = dataclasses.replace(dataset, test=test)
    chosen = choose_images(named, ["test_00004", "0"])
    assert chosen.indices == (4, 0)
    assert chosen.names[0] == "test image 4 (dog, test_00004)"
    assert chosen.stems == ("test_00004", "test_00003")  # official places both
    assert test.take(np.array([5, 2])).ids.tolist() == ["test_00002", "test_00000"]
    with pytest.raises(UserError, match="test_00006 is neither an index or a record"):
        choose_images(named, ["test_00006"])
    with pytest.raises(UserError, match="test_00004 is neither"):
        choose_images(dataset, ["test_00004"])


def test_figures_of_files_of_one_name_have_their_own(dataset, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "my cat: <b>.png"
        Image.fromarray(dataset.test.images[3]).save(path)
    files = [str(path) for path in sorted(tmp_path.glob("*/*"))]
    chosen = choose_images(dataset, ["0", *files, "0"])
    names = ("test_00000", "my_cat_b_", "my_cat_b__2", "test_00000_2")
    assert chosen.stems == names


@pytest.mark.parametrize("text", ["6", "3-6", "2-1", "999999999"])
def test_an_index_out_of_range(dataset, text):
    with pytest.raises(UserError, match=f"no test images {text}: .* 0 to 5"):
        choose_images(dataset, [text])


def test_nothing_is_no_choice(dataset):
    with pytest.raises(UserError, match="no image"):
        choose_images(dataset, [])


def test_a_file_of_the_right_size_is_taken_as_it_is(dataset, tmp_path):
    image = dataset.test.images[3]
    Image.fromarray(image).save(tmp_path / "mine.png")
    chosen = choose_images(dataset, ["1", str(tmp_path / "mine.png")])
    np.testing.assert_array_equal(chosen.images[1], image)
    assert chosen.names[1] == "mine.png" and chosen.notes == ()
    assert chosen.indices == (1, 7)  # no image of the test set has it


def test_a_photo_is_cut_and_resized_with_a_note(dataset, gray, tmp_path):
    """Red outside the middle square, blue in it: only blue is left."""
    pixels = np.zeros((60, 100, 3), np.uint8)
    pixels[..., 0], pixels[:, 20:80] = 255, (0, 0, 255)
    Image.fromarray(pixels).save(tmp_path / "photo.bmp")
    chosen = choose_images(dataset, [str(tmp_path / "photo.bmp")])
    blue = np.full((32, 32, 3), (0, 0, 255))
    np.testing.assert_array_equal(chosen.images[0, :, 4:-4], blue[:, 4:-4])
    np.testing.assert_allclose(chosen.images[0], blue, atol=16)  # the edge is soft
    (note,) = chosen.notes
    assert note.startswith("photo.bmp, 100 x 60 pixels") and "to 32 x 32" in note
    chosen = choose_images(gray, [str(tmp_path / "photo.bmp")])
    assert chosen.images.shape == (1, 8, 8, 1)
    luma = 0.114 * 255  # of blue
    np.testing.assert_allclose(chosen.images, luma, atol=4)


def test_what_is_transparent_lies_on_white_and_photos_stand_upright(gray, tmp_path):
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:4, :, 3] = 255  # the upper half is black
    file = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 3  # taken upside down
    file.save(tmp_path / "a.png", exif=exif)
    image = choose_images(gray, [str(tmp_path / "a.png")]).images[0, :, :, 0]
    np.testing.assert_array_equal(image, np.repeat([255, 0], 32).reshape(8, 8))


def test_files_that_are_no_image(dataset, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(UserError, match=r"bad\.png cannot be read as an image"):
        choose_images(dataset, [str(bad)])
    Image.new("L", (50, 50), 7).save(bad)
    bad.write_bytes(bad.read_bytes()[:60])
    with pytest.raises(UserError, match=r"bad\.png cannot be read as an image"):
        choose_images(dataset, [str(bad)])
    Image.new("RGB", (32, 32)).save(bad, format="PCX")  # whole, but not on the list
    with pytest.raises(UserError, match=r"bad\.png cannot be read as an image"):
        choose_images(dataset, [str(bad)])
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(bad)
    with pytest.raises(UserError, match="more than 8 bits"):
        choose_images(dataset, [str(bad)])


@pytest.mark.parametrize("size", [(9000, 9000), (20_000, 20_000)])
def test_a_huge_image_is_refused_unread(dataset, tmp_path, size):
    Image.new("1", size).save(tmp_path / "huge.png")
    with pytest.raises(UserError, match=r"huge\.png (has more than 64|cannot be read)"):
        choose_images(dataset, [str(tmp_path / "huge.png")])


@pytest.fixture
def batches(dataset, tmp_path):
    """A folder of python batches: the test set in reverse, and other images."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    other = np.random.default_rng(1).integers(0, 256, (2, 32, 32, 3), np.uint8)
    content = {
        "test_batch": (dataset.test.images[::-1], [f"t_s_{i}.png" for i in range(6)]),
        "data_batch_3": (other, ["cat_s_000019.png", "frog_s_000002.png"]),
    }
    for name, (images, names) in content.items():
        data = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        batch = {"data": data, "filenames": names}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder, other


def test_by_cifar_file_name_and_by_place(dataset, batches, tmp_path):
    folder, other = batches
    wanted = ["cat_s_000019", "frog_s_000002.png", "test_batch:5", "t_s_2"]
    chosen = choose_images(dataset, wanted, folder)
    np.testing.assert_array_equal(chosen.images[:2], other)
    np.testing.assert_array_equal(chosen.images[2:], dataset.test.images[[0, 3]])
    assert chosen.names[0] == "cat_s_000019" and chosen.indices[0] == 6
    assert chosen.names[2:] == ("t_s_5 (test image 0)", "t_s_2 (test image 3)")
    assert chosen.indices[2:] == (0, 3)
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    again = choose_images(dataset, wanted, tmp_path / "c.tar.gz")
    np.testing.assert_array_equal(again.images, chosen.images)


def test_what_the_batches_do_not_have(dataset, gray, batches, tmp_path):
    folder, _ = batches
    with pytest.raises(UserError, match="neither an index .* needs its python version"):
        choose_images(dataset, ["cat_s_000019"])
    with pytest.raises(UserError, match="no image in .* is called horse_s_1"):
        choose_images(dataset, ["horse_s_1"], folder)
    with pytest.raises(UserError, match="test_batch in .* has 6 images"):
        choose_images(dataset, ["test_batch:6"], folder)
    with pytest.raises(UserError, match="nowhere does not exist"):
        choose_images(dataset, ["cat_s_000019"], tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no python batches"):
        choose_images(dataset, ["cat_s_000019"], tmp_path)
    with pytest.raises(UserError, match="do not fit"):
        choose_images(gray, ["cat_s_000019"], folder)
    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": 1}, protocol=2))
    with pytest.raises(UserError, match="data_batch_1 .* no whole batch"):
        choose_images(dataset, ["cat_s_000019"], folder)


def test_a_batch_that_is_a_program_is_not_run(dataset, batches, tmp_path):
    folder, _ = batches
    attack = b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR."
    (folder / "data_batch_1").write_bytes(attack)
    with pytest.raises(UserError, match="asks for os.system"):
        choose_images(dataset, ["cat_s_000019"], folder)
    assert not (tmp_path / "owned").exists()
