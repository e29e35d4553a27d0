"""Web servers that mean harm: slow, endless, lying, changing."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from mmcalib.domain.items import Item, Skipped
from mmcalib.locations import bounds
from mmcalib.locations.opening import local_copy
from mmcalib.locations.remote import open_url
from mmcalib.media.probe import probe
from tests.corpus.media import png
from tests.security.servers import Connection, Server, server

pytest.importorskip("aiohttp")
pytest.importorskip("fsspec")

PICTURE = png(40, 24)
LARGE = PICTURE + bytes(1 << 19)
MEBI = 1 << 20

Behave = Callable[[Connection], object]


def says_nothing(connection: Connection) -> None:
    connection.wait(20)


def dribbles_headers(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 206 Partial Content\r\n")
    while connection.send(b"X-A: b\r\n") and connection.wait(0.05):
        pass


def dribbles_the_body(connection: Connection) -> None:
    connection.answer("200 OK", "Content-Length: 1000000", body=PICTURE)
    while connection.send(b"\0") and connection.wait(0.1):
        pass


def endless_headers(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 206 Partial Content\r\n")
    while connection.send(b"X-A: " + b"b" * 1000 + b"\r\n"):
        pass


def one_header_of_a_gibibyte(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 206 Partial Content\r\nX-A: ")
    while connection.send(b"b" * MEBI):
        pass


def endless_chunks(connection: Connection) -> None:
    connection.answer("200 OK", "Transfer-Encoding: chunked")
    while connection.send(b"100000\r\n" + bytes(MEBI) + b"\r\n"):
        pass


def more_than_the_range(connection: Connection) -> None:
    connection.answer("206 Partial Content", "Content-Range: bytes 0-65535/1000000")
    while connection.send(bytes(MEBI)):
        pass


def more_than_the_range_by_its_length(connection: Connection) -> None:
    headers = ("Content-Range: bytes 0-65535/1000000", f"Content-Length: {1 << 40}")
    connection.answer("206 Partial Content", *headers)
    while connection.send(bytes(MEBI)):
        pass


def a_huge_object_whole(connection: Connection) -> None:
    connection.answer("200 OK", f"Content-Length: {1 << 40}")
    while connection.send(bytes(MEBI)):
        pass


def a_body_that_ends_too_early(connection: Connection) -> None:
    connection.answer("200 OK", "Content-Length: 1000000", body=PICTURE)


def a_range_that_ends_too_early(connection: Connection) -> None:
    connection.answer("206 Partial Content", "Content-Range: bytes 0-9999/10000", body=PICTURE)


def another_range(connection: Connection) -> None:
    headers = ("Content-Range: bytes 100-199/1000", "Content-Length: 100")
    connection.answer("206 Partial Content", *headers, body=bytes(100))


def a_range_without_end(connection: Connection) -> None:
    digits = "9" * 2000
    connection.answer("206 Partial Content", f"Content-Range: bytes 0-{digits}/{digits}")


def a_bomb(connection: Connection) -> None:
    body = gzip.compress(bytes(64 * MEBI))
    headers = ("Content-Encoding: gzip", f"Content-Length: {len(body)}")
    connection.answer("200 OK", *headers, body=body)


def no_http(connection: Connection) -> None:
    connection.send(b"220 mail.example ESMTP\r\n" + b"\0\xff" * 1000)


def redirects_to_itself(connection: Connection) -> None:
    connection.answer("301 Moved", f"Location: {connection.path}a")


def says_that_it_changed(connection: Connection) -> None:
    connection.answer_range(LARGE, f"ETag: {connection.range}")


def grows(connection: Connection) -> None:
    start, _ = connection.range or (0, 0)
    connection.answer_range(LARGE, total=len(LARGE) + start)


def ends_before_its_size(connection: Connection) -> None:
    connection.answer_range(PICTURE, total=1 << 40)


@pytest.mark.parametrize(
    "behave", [says_nothing, dribbles_headers, dribbles_the_body], ids=lambda one: one.__name__
)
def test_a_slow_server_costs_its_item(behave: Behave, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "TIMEOUT_S", 1.0)
    with server(behave) as bad:
        assert skipped(bad) == "no answer in time"


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (endless_headers, "the server's answer is not HTTP"),
        (one_header_of_a_gibibyte, "the server's answer is not HTTP"),
        (endless_chunks, "over 64 MiB from a server that knows no ranges"),
        (more_than_the_range, "the server sends more bytes than it was asked for"),
        (more_than_the_range_by_its_length, "the server sends more bytes than it was asked for"),
        (a_huge_object_whole, "over 64 MiB from a server that knows no ranges"),
        (a_body_that_ends_too_early, "the server's answer ends too early"),
        (a_range_that_ends_too_early, "the server's answer ends too early"),
        (another_range, "the server sends other bytes than it was asked for"),
        (a_range_without_end, "the server sends other bytes than it was asked for"),
        (a_bomb, "the server sends it in another form: gzip"),
        (no_http, "the server's answer is not HTTP"),
        (redirects_to_itself, "more than 10 redirects"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_lying_server_costs_its_item(behave: Behave, reason: str) -> None:
    with server(behave) as bad:
        assert skipped(bad) == f"cannot be read: {reason}"


def skipped(bad: Server) -> str:
    found = probe(Item(f"{bad.url}/a.png"))
    assert isinstance(found, Skipped)
    return found.reason


@pytest.mark.parametrize("behave", [says_that_it_changed, grows])
def test_an_object_that_changes_meanwhile_is_not_mixed(behave: Behave) -> None:
    with server(behave) as bad:
        file, size_bytes = open_url(f"{bad.url}/a.png")
        assert size_bytes == len(LARGE)
        assert file.read(len(PICTURE)) == PICTURE
        with pytest.raises(OSError, match="it changes while it is read"):
            file.read()


def test_a_size_that_is_not_true_fills_neither_memory_nor_disk(tmp_path: Path) -> None:
    with server(ends_before_its_size) as bad:
        with pytest.raises(OSError, match="over 256 MiB in one piece"):
            open_url(f"{bad.url}/a.png")[0].read(1 << 33)
        with pytest.raises(OSError, match="more than 4 GiB"):
            local_copy(f"{bad.url}/a.png", tmp_path)
    assert list(tmp_path.iterdir()) == []


def slowly(connection: Connection) -> None:
    """Each answer whole and just in time, of an archive that is said to be huge."""
    connection.wait(0.2)
    start, _ = connection.range or (0, 0)
    said = f"Content-Range: bytes {start}-{start + 511}/{1 << 40}"
    tar_of_folders = b"a/".ljust(100, b"\0")
    body = tar_of_folders.ljust(512, b"\0")
    connection.answer("206 Partial Content", said, "Content-Length: 512", body=body)


def test_archives_of_such_servers_end_too(tmp_path: Path) -> None:
    """They are opened by the command itself, which nobody would end."""
    pytest.importorskip("pyarrow")
    (tmp_path / "good.png").write_bytes(PICTURE)
    data = [str(tmp_path / "good.png")]
    with ExitStack() as stack:
        for behave in (says_nothing, dribbles_the_body, slowly, endless_chunks):
            bad = stack.enter_context(server(behave))
            data += [f"{bad.url}/a{ending}" for ending in (".tar", ".tar.gz", ".zip", ".parquet")]
        words = [word for one in data for word in ("--data", one)]
        ended = scanned(*words)
    assert ended.returncode == 0, ended.stderr
    skipped = json.loads(ended.stdout)["skipped"]
    assert sorted(one["path"] for one in skipped) == sorted(data[1:])


PATIENT = """
import resource
from mmcalib.cli import main
from mmcalib.locations import bounds
bounds.TIMEOUT_S = 0.4
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, resource.RLIM_INFINITY))
main()
"""


def scanned(*words: str) -> subprocess.CompletedProcess[str]:
    """By a process that may not grow; its workers have bounds of their own."""
    options = ("--workers", "1", "--no-cache", "--json")
    command = [sys.executable, "-c", PATIENT, "scan", *words, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
