"""Every layout of a copy is recognised and read exactly; damaged ones are refused."""

import io
import pathlib
import tarfile

import numpy as np
import pytest

from attn_cnn_jax.data import CIFAR_COUNTS
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data import archives
from attn_cnn_jax.prepare_data.cifar import Cifar, Split
from attn_cnn_jax.prepare_data.copies import find_copy

DATASETS = ("cifar10", "cifar100")


def _write(copies, cifar, folder, layout):
    if layout == "binary":
        copies.write_binary(cifar, folder)
    else:
        copies.write_python(cifar, folder, python2=layout == "python2")


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("layout", ["binary", "python2", "python3"])
def test_folders_and_archives_give_the_same_data(
    dataset, layout, copies, assert_same, tmp_path
):
    cifar = copies.tiny(dataset)
    folder = tmp_path / "nested" / "batches"
    _write(copies, cifar, folder, layout)
    for place in (folder, tmp_path / "nested", tmp_path):
        source = find_copy(place)
        assert source.dataset == dataset
        assert_same(source.read(), cifar)
    archive = copies.pack(folder, tmp_path / "any name")
    assert_same(find_copy(archive).read(), cifar)
    (tmp_path / "downloads").mkdir()
    archive.rename(tmp_path / "downloads" / "cifar-10x.tar.gz")
    assert_same(find_copy(tmp_path / "downloads").read(), cifar)


def test_the_user_chooses_where_both_datasets_are(copies, assert_same, tmp_path):
    for dataset in DATASETS:
        copies.write_binary(copies.tiny(dataset), tmp_path / dataset)
    with pytest.raises(UserError, match="holds cifar10 and cifar100.*--dataset"):
        find_copy(tmp_path)
    found = find_copy(tmp_path, "cifar100").read()
    assert_same(found, copies.tiny("cifar100"))


def test_the_wrong_dataset_is_not_taken(copies, tmp_path):
    copies.write_binary(copies.tiny("cifar10"), tmp_path / "c")
    with pytest.raises(UserError, match="holds no cifar100"):
        find_copy(tmp_path, "cifar100")
    archive = copies.pack(tmp_path / "c", tmp_path / "c.tar.gz")
    with pytest.raises(UserError, match="holds cifar10, not cifar100"):
        find_copy(archive, "cifar100")


def test_what_is_no_copy_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        find_copy(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no CIFAR"):
        find_copy(tmp_path)
    (tmp_path / "train").write_bytes(b"any file may be called so")
    with pytest.raises(UserError, match="holds no CIFAR"):
        find_copy(tmp_path)
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(UserError, match="truncated or no tar archive"):
        find_copy(tmp_path / "note.txt")


def test_a_missing_file_is_named(copies, tmp_path):
    copies.write_binary(copies.tiny("cifar10"), tmp_path / "c")
    (tmp_path / "c" / "data_batch_3.bin").unlink()
    with pytest.raises(UserError, match="data_batch_3.bin is missing"):
        find_copy(tmp_path / "c").read()


def test_a_truncated_file_is_named(copies, tmp_path):
    copies.write_binary(copies.tiny("cifar10"), tmp_path / "c")
    path = tmp_path / "c" / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="data_batch_2.bin .* is truncated"):
        find_copy(tmp_path / "c").read()


@pytest.mark.parametrize(("dataset", "label"), [("cifar10", 10), ("cifar100", 20)])
def test_a_label_beyond_the_classes_is_named(dataset, label, copies, tmp_path):
    copies.write_binary(copies.tiny(dataset), tmp_path / "c")
    [path] = [p for p in (tmp_path / "c").iterdir() if p.name.startswith("test")]
    data = bytearray(path.read_bytes())
    data[3 * len(data) // 20] = label
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"record 3 has the label {label}"):
        find_copy(tmp_path / "c").read()


def test_a_truncated_archive_is_refused(copies, tmp_path):
    copies.write_binary(copies.tiny("cifar10"), tmp_path / "c")
    archive = copies.pack(tmp_path / "c", tmp_path / "c.tar.gz")
    whole = archive.read_bytes()
    for length in (len(whole) // 2, len(whole) - 4):
        archive.write_bytes(whole[:length])
        with pytest.raises(UserError, match="truncated or no tar archive"):
            find_copy(archive)


def test_members_count_by_basename_and_nothing_is_extracted(
    copies, assert_same, tmp_path
):
    cifar = copies.tiny("cifar10")
    copies.write_binary(cifar, tmp_path / "c")
    archive = tmp_path / "in" / "c.tar"
    archive.parent.mkdir()
    with tarfile.open(archive, "w") as tar:
        for path in sorted((tmp_path / "c").iterdir()):
            tar.add(path, f"../../{path.name}")
    before = sorted(tmp_path.rglob("*"))
    assert_same(find_copy(archive).read(), cifar)
    assert sorted(tmp_path.rglob("*")) == before


def test_links_in_an_archive_are_not_followed(tmp_path):
    archive = tmp_path / "c.tar"
    (tmp_path / "secret").write_bytes(b"secret")
    with tarfile.open(archive, "w") as tar:
        for name in ("train.bin", "test.bin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
            tar.addfile(link)
    with pytest.raises(UserError, match="holds no CIFAR"):
        find_copy(archive)


def test_sizes_are_bounded_before_reading(copies, tmp_path, monkeypatch):
    copies.write_binary(copies.tiny("cifar10"), tmp_path / "c")
    archive = copies.pack(tmp_path / "c", tmp_path / "c.tar.gz")
    monkeypatch.setattr(archives, "MAX_FILE", 1000)
    with pytest.raises(UserError, match="too large"):
        find_copy(archive)
    with pytest.raises(UserError, match="too large"):
        find_copy(tmp_path / "c").read()


def test_a_compression_bomb_is_stopped(tmp_path, monkeypatch):
    archive = tmp_path / "c.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("zeros")
        member.size = 2**22
        tar.addfile(member, io.BytesIO(bytes(2**22)))
    monkeypatch.setattr(archives, "MAX_ARCHIVE", 2**20)
    with pytest.raises(UserError, match="unpacks to more"):
        find_copy(archive)


def test_two_files_of_one_name_are_refused(tmp_path):
    archive = tmp_path / "c.tar"
    with tarfile.open(archive, "w") as tar:
        for folder in "ab":
            tar.addfile(tarfile.TarInfo(f"{folder}/train.bin"))
    with pytest.raises(UserError, match="two files named train.bin"):
        find_copy(archive)


def _of_counts(counts: dict[str, int]) -> Cifar:
    splits = {
        name: Split(
            np.broadcast_to(np.uint8(0), (count, 32, 32, 3)),
            {"label": np.zeros(count, np.int64)},
        )
        for name, count in counts.items()
    }
    return Cifar("cifar10", splits, {"label": list("abcdefghij")})


def test_counts_have_to_be_the_official_ones():
    _of_counts(CIFAR_COUNTS).check("it", allow_partial=False)
    fewer = _of_counts({"train": 50_000, "test": 9_999})
    with pytest.raises(UserError, match="test has 9999 records, not 10000"):
        fewer.check("it", allow_partial=False)
    fewer.check("it", allow_partial=True)
    for count in (0, 10_001):
        with pytest.raises(UserError, match=f"test has {count} records"):
            _of_counts({"train": 1, "test": count}).check("it", allow_partial=True)


def test_label_names_have_to_be_one_for_each_class(copies):
    cifar = copies.tiny("cifar10")
    cifar.label_names["label"][3] = cifar.label_names["label"][4]
    with pytest.raises(UserError, match="names 9 classes for label, not 10"):
        cifar.check("it", allow_partial=True)


def test_only_official_pixels_are_called_official(copies):
    assert copies.tiny("cifar10").is_official() is False
    assert copies.tiny("cifar100").is_official() is None


def test_folders_are_searched_two_levels_deep_and_not_in_hidden_ones(tmp_path):
    for name in ("a/b/c", ".hidden", "incomplete.x"):
        (tmp_path / name).mkdir(parents=True)
    levels = list(archives.folders(tmp_path, 2))
    assert levels == [[tmp_path], [tmp_path / "a"], [tmp_path / "a/b"]]
    assert isinstance(levels[0][0], pathlib.Path)
