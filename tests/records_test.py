"""The records of a run: files that survive crashes, full disks and hands."""

import json
import shutil
import subprocess
import warnings

import pytest
from processes import events

from attn_cnn_jax import records
from attn_cnn_jax.records import Records


def write(workdir, first: int, last: int) -> None:
    file = Records(workdir, first, enabled=True)
    for step in range(first + 1, last + 1):
        file.write(step, "train", {"loss": step / 7, "accuracy": 0.5})
    file.write(last, "test", {"accuracy": 0.25})
    file.close()


def test_a_line_is_an_object_and_all_scalars_are_events(tmp_path):
    write(tmp_path, 0, 3)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    found = records.read(tmp_path)
    first = {"step": 1, "split": "train", "loss": 1 / 7, "accuracy": 0.5}
    assert found[0] == first and len(found) == 4
    assert found[-1] == {"step": 3, "split": "test", "accuracy": 0.25}
    for line, record in zip(lines, found, strict=True):
        assert json.loads(line) == {**record, "chain": json.loads(line)["chain"]}
    scalars = events(tmp_path)
    assert scalars["train/loss", 2] == pytest.approx(2 / 7)
    assert scalars["test/accuracy", 3] == pytest.approx(0.25)
    assert len(scalars) == 7


def test_what_was_written_shows_while_the_run_goes_on(tmp_path):
    file = Records(tmp_path, 0, enabled=True)
    file.write(1, "train", {"loss": 2.0})
    assert [line["loss"] for line in records.read(tmp_path)] == [2.0]
    file.close()


def test_reopened_at_a_step_it_drops_what_is_later(tmp_path):
    write(tmp_path, 0, 6)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 2, "split": "tra')  # a crash
    assert len(records.read(tmp_path)) == 7
    write(tmp_path, 4, 5)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    seen = [(line["step"], line["split"]) for line in lines]
    train = [(step, "train") for step in range(1, 6)]
    assert seen == [*train, (5, "test")]
    assert [p.name for p in tmp_path.glob("metrics*")] == ["metrics.jsonl"]


def test_a_complete_last_line_without_its_line_break_is_kept_whole(tmp_path):
    write(tmp_path, 0, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().rstrip("\n"))
    write(tmp_path, 2, 3)
    assert [line["step"] for line in records.read(tmp_path)] == [1, 2, 2, 3, 3]


@pytest.mark.parametrize("garbage", ["12\n", "null\n", '"step"\n', "[]\n", "{}\n"])
def test_a_line_that_is_not_a_record_does_not_stop_a_run(tmp_path, garbage):
    write(tmp_path, 0, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(garbage + path.read_text())
    with pytest.warns(UserWarning, match="metrics.jsonl: line 1 is broken"):
        write(tmp_path, 2, 3)
    assert [line["step"] for line in records.read(tmp_path)] == [1, 2, 2, 3, 3]


def test_a_line_of_damaged_bytes_does_not_stop_a_run(tmp_path):
    write(tmp_path, 0, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": \xff\xfe\x00')
    write(tmp_path, 2, 3)
    assert [line["step"] for line in records.read(tmp_path)] == [1, 2, 2, 3, 3]


def test_a_process_that_is_not_the_first_writes_nothing(tmp_path):
    file = Records(tmp_path, 0, enabled=False)
    file.write(1, "train", {"loss": 1.0})
    file.close()
    assert list(tmp_path.iterdir()) == []


def told(workdir) -> list[str]:
    """What reading the records warns of, without the path."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records.read(workdir)
    return [str(warning.message).partition("metrics.jsonl: ")[2] for warning in caught]


def swap(lines):
    lines[2], lines[3] = lines[3], lines[2]


@pytest.mark.parametrize(
    ("change", "complaints"),
    [
        (lambda lines: None, []),
        (lambda lines: lines.pop(0), ["line 1 is not as written, or had"]),
        (lambda lines: lines.pop(3), ["line 4 is not as written, or had"]),
        (
            lambda lines: lines.__setitem__(2, lines[2].replace("0.5", "0.6")),
            ["line 3 is not as written, or had"],
        ),
        (
            lambda lines: lines.__setitem__(4, lines[4][:20]),
            ["line 5 is broken", "line 6 is not as written, or had"],
        ),
        (swap, ["lines 3, 4, 5 are not as written, or had"]),
        (
            lambda lines: lines.insert(1, '{"step": 1, "split": "train", "loss": 9}'),
            ["line 2 is not as written, or had"],
        ),
        (
            lambda lines: lines.__setitem__(slice(0, 9), ["x"] * 7),
            ["lines 1, 2, 3 and"],
        ),
    ],
)
def test_a_reader_is_told_what_is_not_as_written(tmp_path, change, complaints):
    write(tmp_path, 0, 8)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("".join(f"{line}\n" for line in lines))
    found = told(tmp_path)
    assert len(found) == len(complaints)
    for text, complaint in zip(found, complaints, strict=True):
        assert text.startswith(complaint)


def test_records_without_digests_may_be_those_of_an_earlier_version(tmp_path):
    old = [{"step": step, "split": "train", "loss": 1.0} for step in (1, 2)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in old))
    assert told(tmp_path) == []
    write(tmp_path, 2, 4)
    assert told(tmp_path) == []
    assert [record["step"] for record in records.read(tmp_path)] == [1, 2, 3, 4, 4]


def test_a_line_that_is_being_written_is_no_complaint(tmp_path):
    write(tmp_path, 0, 3)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    assert told(tmp_path) == []
    assert [record["step"] for record in records.read(tmp_path)] == [1, 2, 3]


def test_a_checkpoint_knows_the_lines_that_were_there(tmp_path):
    """Even where the last ones are gone, which no digest of a line could tell."""
    file = Records(tmp_path, 0, enabled=True)
    for step in range(1, 6):
        file.write(step, "train", {"loss": 1 / step})
    mark = file.mark()
    file.write(6, "train", {"loss": 0.1})
    file.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Records(tmp_path, 5, mark, enabled=True).close()
    path = tmp_path / "metrics.jsonl"
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:3]))
    with pytest.warns(UserWarning, match="has 3 of the 5 lines up to step 5"):
        Records(tmp_path, 5, mark, enabled=True).close()
    path.unlink()
    with pytest.warns(UserWarning, match="has 0 of the 5 lines up to step 5"):
        Records(tmp_path, 5, mark, enabled=True).close()
    path.write_text(whole.replace('"loss": 0.2,', '"loss": 0.3,'))
    with pytest.warns(UserWarning, match="line 5 is not as written"):
        Records(tmp_path, 5, mark, enabled=True).close()


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount).returncode:
        pytest.skip("only root may mount a disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_loses_no_record_once_there_is_room_again(small_disk):
    file = Records(small_disk, 0, enabled=True)
    file.write(1, "train", {"loss": 1.0})
    file.sync()
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(64 * 1024))
    with pytest.warns(UserWarning) as caught:
        for step in range(2, 200):
            file.write(step, "train", {"loss": 1 / step})
            if step % 10 == 0:
                file.sync()
    assert len(caught) == 2  # one for each of the files, and no more
    assert all("No space left on device" in str(w.message) for w in caught)
    assert len(records.read(small_disk)) < 100
    ballast.unlink()
    file.write(200, "train", {"loss": 1 / 200})
    file.close()
    assert told(small_disk) == []
    steps = range(1, 201)
    assert [record["step"] for record in records.read(small_disk)] == [*steps]
    written = events(small_disk)
    assert [step for _, step in sorted(written)] == [*steps]
    assert written["train/loss", 150] == pytest.approx(1 / 150)
