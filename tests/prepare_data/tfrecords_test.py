"""TFRecords of TFDS are read without TensorFlow, in order, checksums verified."""

import struct

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data import tfrecords, write
from attn_cnn_jax.prepare_data.copies import find_copy


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_a_tfds_folder_is_read_in_the_official_order(
    dataset, copies, assert_same, tmp_path
):
    cifar = copies.tiny(dataset)
    folder = copies.write_tfrecords(cifar, tmp_path)
    for place in (folder, folder.parent, tmp_path):
        source = find_copy(place)
        assert "TFDS" in source.description
        assert_same(source.read(), cifar)


def test_the_checksum_is_that_of_the_format():
    # RFC 3720 gives the CRC-32C of 32 zeros and of 0 ... 31.
    parts = [bytes(32), bytes(range(32)), b"", b"123456789"]
    crcs = np.array([0x8A9136AA, 0x46DD794E, 0, 0xE3069283], np.uint64)
    masked = ((crcs >> 15 | crcs << 17) & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF
    np.testing.assert_array_equal(tfrecords.masked_crc32c(parts), masked)


def test_records_come_back(frame, tmp_path, monkeypatch):
    payloads = [bytes([i]) * (7 * i % 31) for i in range(50)]
    path = tmp_path / "records"
    path.write_bytes(b"".join(map(frame, payloads)))
    monkeypatch.setattr(tfrecords, "CHUNK", 16)
    assert tfrecords.records(path) == payloads


@pytest.mark.parametrize("at", [0, 9, 15, 40])
def test_a_flipped_bit_is_found(at, frame, tmp_path):
    data = bytearray(frame(b"first record") + frame(b"second record"))
    data[at] ^= 1
    path = tmp_path / "records"
    path.write_bytes(data)
    with pytest.raises(UserError, match="damaged|truncated"):
        tfrecords.records(path)


def test_a_truncated_file_is_refused(frame, tmp_path):
    data = frame(b"first record") + frame(b"second record")
    path = tmp_path / "records"
    for length in (len(data) - 1, len(data) // 2 + 5, len(data) // 2 + 13):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match="truncated"):
            tfrecords.records(path)


def test_a_length_is_bounded_before_reading(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(struct.pack("<QI", 2**40, 0) + bytes(100))
    with pytest.raises(UserError, match="a record of 1099511627776 bytes"):
        tfrecords.records(path)


def test_a_missing_shard_is_noticed(copies, tmp_path):
    folder = copies.write_tfrecords(copies.tiny("cifar10"), tmp_path)
    next(folder.glob("*train*-00001-of-*")).unlink()
    with pytest.raises(UserError, match="1 TFRecord files of train.* promise 2"):
        find_copy(folder).read()


def test_a_record_that_is_no_image_is_named(frame, copies, tmp_path):
    folder = copies.write_tfrecords(copies.tiny("cifar10"), tmp_path)
    next(folder.glob("*test*")).write_bytes(frame(b"") + frame(b"\xff"))
    with pytest.raises(UserError, match="record 0 of test"):
        find_copy(folder).read()


def test_what_is_prepared_already_is_no_source(copies, tmp_path):
    write.prepare(copies.tiny("cifar10"), tmp_path, allow_partial=True)
    with pytest.raises(UserError, match=f"use it with --data_dir={tmp_path}"):
        find_copy(tmp_path).read()
