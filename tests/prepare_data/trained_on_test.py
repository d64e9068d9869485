"""What training reads is what was verified, and as much as there should be."""

import json
import warnings

import numpy as np
import pytest

from attn_cnn_jax import data
from attn_cnn_jax.config import base_config
from attn_cnn_jax.data import verified
from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data import verify, write


@pytest.fixture
def prepared(copies, tmp_path):
    """The folder of a small CIFAR-10, prepared with --allow_partial."""
    write.prepare(copies.tiny("cifar10"), tmp_path, allow_partial=True)
    return verify.prepared_dir("cifar10", tmp_path)


def _load(folder):
    dataset = base_config().dataset
    dataset.update(name="cifar10", data_dir=str(folder.parent.parent))
    return data.load(dataset)


def test_a_part_that_was_prepared_on_purpose_is_said_once(prepared, copies):
    few = "100 of 50,000 train records, 20 of 10,000 test records"
    with pytest.warns(UserWarning, match=f"on purpose: {few}") as caught:
        dataset = _load(prepared)
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    whole = copies.tiny("cifar10").splits
    for kind in ("train", "test"):
        split = getattr(dataset, kind)
        assert split.ids is not None
        places = [int(name.removeprefix(f"{kind}_")) for name in split.ids]
        np.testing.assert_array_equal(split.images, whole[kind].images[places])
        np.testing.assert_array_equal(split.labels, whole[kind].labels["label"][places])


def test_a_part_that_nobody_meant_is_refused(prepared):
    """Be it signed as whole, as the first versions signed it, or not at all."""
    path = prepared / verified.FILE
    digests = json.loads(path.read_text())["files"]
    verified.sign(prepared, partial=False)
    command = f"--source={prepared} --data_dir={prepared.parent.parent} --allow_partial"
    for text in (path.read_text(), json.dumps(digests), None):
        path.unlink()
        if text is not None:
            path.write_text(text)
        with pytest.raises(UserError, match=f"not whole: 100 of 50,000.*{command}"):
            _load(prepared)
        assert verify.is_prepared("cifar10", prepared.parent.parent, allow_partial=True)
        with pytest.warns(UserWarning, match="on purpose"):  # the command said so
            _load(prepared)


def test_records_that_were_cut_off_are_noticed(prepared):
    """As a file that is whole, and an info that says so: 40,000 of 50,000 images."""
    path = prepared / "dataset_info.json"
    info = json.loads(path.read_text())
    info["splits"][0]["shardLengths"] = ["10"]
    path.write_text(json.dumps(info))
    with pytest.raises(UserError, match="dataset_info.json is another"):
        _load(prepared)
    (prepared / verified.FILE).unlink()
    with pytest.raises(UserError, match="records, not 10. Prepare"):
        _load(prepared)


DAMAGE = {
    "is another": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
    "is missing": lambda path: path.unlink(),
    "was not there": lambda path: path.with_name("x.labels.txt").write_text("cat"),
}


@pytest.mark.parametrize("fault", DAMAGE)
@pytest.mark.parametrize("pattern", ["*-train.array_record*", "label.labels.txt"])
def test_a_file_that_is_not_as_it_was_verified_is_named(fault, pattern, prepared):
    DAMAGE[fault](next(prepared.glob(pattern)))
    with pytest.raises(UserError, match=f"not as it was verified: .* {fault}") as error:
        _load(prepared)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[" * 30_000, "[]", '{"files": 3}', "\xff", "1"])
def test_a_record_of_digests_that_is_none_is_refused(text, prepared):
    (prepared / verified.FILE).write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match="verified.json cannot be read") as error:
        _load(prepared)
    assert "\n" not in str(error.value)


def test_what_others_own_is_verified_but_not_marked(prepared, monkeypatch):
    """A folder that can only be read; for root, who runs this, there is none."""

    def refused(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    (prepared / verified.FILE).unlink()
    monkeypatch.setattr(verified, "sign", refused)
    with pytest.warns(UserWarning, match="not marked: .*Permission denied"):
        assert verify.is_prepared("cifar10", prepared.parent.parent, allow_partial=True)


def test_a_whole_copy_is_read_without_a_word(copies, tmp_path, monkeypatch):
    write.prepare(copies.tiny("cifar100"), tmp_path, allow_partial=True)
    folder = verify.prepared_dir("cifar100", tmp_path)
    verified.sign(folder, partial=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, count in (("train", 100), ("test", 20)):
            monkeypatch.setitem(data.CIFAR_COUNTS, name, count)
        dataset = base_config().dataset
        dataset.update(name="cifar100", data_dir=str(tmp_path))
        assert data.load(dataset).num_classes == 100
