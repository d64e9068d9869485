"""Downloads from servers that break off, ignore ranges, refuse, or lie."""

import hashlib
import http.server
import re
import threading

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from attn_cnn_jax.prepare_data import download

CONTENT = np.random.default_rng(0).bytes(500_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves `content`; the attributes say how badly."""

    content = CONTENT
    ranges = True
    break_after: int | None = None  # bytes of each answer
    statuses: list[int]  # answered first, one for each request
    seen: list[str | None]  # the Range of each request
    shift = 0  # bytes by which a partial answer is off
    chunked = False  # no Content-Length
    gave_up = False  # whether it waited for that in vain
    silence: threading.Event | None = None  # the line stays open until it is set


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the server's attributes say."""

    server: Server

    def do_GET(self):  # noqa: N802, the name that http.server calls
        """Answer one request."""
        server, wanted = self.server, self.headers.get("Range")
        server.seen.append(wanted)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        start = 0
        if wanted and server.ranges:
            [start] = map(int, re.fullmatch(r"bytes=(\d+)-", wanted).groups())
            if start >= len(server.content):
                self.send_error(416)
                return
            start += server.shift
            self.send_response(206)
            total = len(server.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        body = server.content[start:]
        if not server.chunked:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.break_after])
        if server.silence:
            self.wfile.flush()
            server.gave_up |= not server.silence.wait(10)

    def log_message(self, format, *args):
        """Say nothing."""


@pytest.fixture
def server():
    """A running server on this machine."""
    with Server(("127.0.0.1", 0), Handler) as running:
        running.statuses, running.seen = [], []
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def fetch(server, tmp_path):
    """Download from the server; `fetch.waits` are the waits between the tries."""

    def call(**changes):
        url = f"http://127.0.0.1:{server.server_address[1]}/archive"
        arguments = {"size": len(CONTENT), "sha256": SHA256, "wait": call.waits.append}
        return download.fetch(url, call.path, **(arguments | changes))

    call.waits = []
    call.path = tmp_path / "downloads" / "archive"
    call.part = tmp_path / "downloads" / "archive.part"
    return call


def test_a_server_that_falls_silent_is_asked_again(server, fetch, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    server.break_after, server.silence = 400_000, threading.Event()
    assert fetch(wait=lambda seconds: server.silence.set()).read_bytes() == CONTENT
    assert server.seen == [None, "bytes=400000-"]
    assert not server.gave_up


def test_a_whole_file_arrives_once(server, fetch):
    assert fetch().read_bytes() == CONTENT
    assert not fetch.part.exists()
    fetch()
    assert server.seen == [None]


def test_a_server_that_breaks_off_is_asked_for_the_rest(server, fetch):
    server.break_after = 60_000
    assert fetch().read_bytes() == CONTENT
    assert server.seen == [None] + [f"bytes={60_000 * i}-" for i in range(1, 9)]
    assert fetch.waits == [1.0] * 8  # each brought something: patience starts again


def test_a_killed_download_goes_on(server, fetch):
    fetch.part.parent.mkdir()
    fetch.part.write_bytes(CONTENT[:123_456])
    assert fetch().read_bytes() == CONTENT
    assert server.seen == ["bytes=123456-"]


def test_a_server_without_ranges_starts_over(server, fetch):
    server.ranges = False
    fetch.part.parent.mkdir()
    fetch.part.write_bytes(b"x" * 1000)
    assert fetch().read_bytes() == CONTENT
    assert server.seen == ["bytes=1000-"]


def test_a_server_without_ranges_that_always_breaks_off_is_given_up(server, fetch):
    server.ranges, server.break_after = False, 60_000
    with pytest.raises(UserError, match="the connection broke off.*go on from there"):
        fetch()
    assert len(server.seen) == download.TRIES
    assert fetch.waits == [1.0, 2.0, 4.0, 8.0]
    assert not fetch.path.exists()


def test_a_part_that_is_too_long_starts_over(server, fetch):
    fetch.part.parent.mkdir()
    fetch.part.write_bytes(b"x" * (len(CONTENT) + 1))
    assert fetch().read_bytes() == CONTENT
    assert server.seen == [None]


def test_an_answer_416_starts_over(server, fetch):
    server.statuses = [416]
    fetch.part.parent.mkdir()
    fetch.part.write_bytes(b"x" * 1000)
    assert fetch().read_bytes() == CONTENT
    assert server.seen == ["bytes=1000-", None]


def test_another_part_than_asked_for_is_not_appended(server, fetch):
    server.shift = 10
    fetch.part.parent.mkdir()
    fetch.part.write_bytes(CONTENT[:1000])
    assert fetch().read_bytes() == CONTENT
    assert server.seen == ["bytes=1000-", None]


def test_a_busy_server_is_asked_again_and_then_given_up(server, fetch):
    server.statuses = [503, 429]
    assert fetch().read_bytes() == CONTENT
    fetch.path.unlink()
    server.statuses = [503] * 10
    with pytest.raises(UserError, match="the server answers 503"):
        fetch()
    assert len(server.statuses) == 10 - download.TRIES


def test_a_server_that_refuses_is_not_asked_again(server, fetch):
    server.statuses = [404]
    with pytest.raises(UserError, match="404 Not Found.*--source"):
        fetch()
    assert len(server.seen) == 1


def test_no_server_at_all_is_named(server, fetch):
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match="Connection refused"):
        fetch()


def test_a_wrong_digest_deletes_the_file_and_says_so(fetch):
    with pytest.raises(UserError, match=f"its sha256 is {SHA256}.*deleted"):
        fetch(sha256="0" * 64)
    assert not fetch.path.exists()
    assert not fetch.part.exists()


@pytest.mark.parametrize(
    ("content", "chunked"),
    [(CONTENT + b"more", False), (CONTENT + b"more", True), (CONTENT[:-1], False)],
)
def test_a_file_of_another_size_is_refused(content, chunked, server, fetch):
    server.content, server.chunked = content, chunked
    with pytest.raises(UserError, match="is not the official archive: it has"):
        fetch()
    assert len(server.seen) == 1
    assert not fetch.path.exists()
    assert fetch.part.read_bytes() == b""


def test_a_finished_file_that_was_damaged_is_fetched_again(fetch, capsys):
    fetch.path.parent.mkdir()
    fetch.path.write_bytes(b"damaged")
    assert fetch().read_bytes() == CONTENT
    assert "is damaged" in capsys.readouterr().out


def test_only_web_addresses_are_fetched(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with pytest.raises(UserError, match="http:// or https://"):
        download.fetch(f"file://{secret}", tmp_path / "a", size=6, sha256="")


def test_a_place_that_cannot_be_written_is_named(fetch):
    fetch.path.parent.write_text("a file, no folder")
    with pytest.raises(UserError, match="archive cannot be written"):
        fetch()


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_the_recorded_archive_is_the_one_that_tfds_names(dataset):
    url, size, sha256 = download.official_archive(dataset)
    number = dataset.removeprefix("cifar")
    assert url == f"https://www.cs.toronto.edu/~kriz/cifar-{number}-binary.tar.gz"
    assert 160e6 < size < 180e6
    assert re.fullmatch("[0-9a-f]{64}", sha256)
