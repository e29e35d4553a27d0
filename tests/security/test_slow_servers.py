"""Web servers that mean harm: slow, endless, lying, changing."""

import gzip
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmcalib.census.executor import FunctionRef, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.corpus.archives import ArchiveSource, SubprocessSource
from mmcalib.domain.items import Item, Skipped, decode_line
from mmcalib.media.probe import probe
from mmcalib.storage import remote
from mmcalib.storage.access import local_copy
from mmcalib.storage.location import allow_hosts
from tests.corpus.listed import reason
from tests.corpus.media import png
from tests.corpus.tars import member
from tests.security.servers import Connection, server

pytest.importorskip("aiohttp")
pytest.importorskip("fsspec")
PICTURE = png(40, 24)
MEBI = 1 << 20
PROBE = FunctionRef("mmcalib.media.probe", "examine")
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


def one_header_of_a_gibibyte(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 206 Partial Content\r\nX-A: ")
    while connection.send(b"b" * MEBI):
        pass


def more_than_the_range(connection: Connection) -> None:
    connection.answer("206 Partial Content", "Content-Range: bytes 0-65535/1000000")
    while connection.send(bytes(MEBI)):
        pass


def a_huge_object_whole(connection: Connection) -> None:
    connection.answer("200 OK", f"Content-Length: {1 << 40}")
    while connection.send(bytes(MEBI)):
        pass


def a_bomb(connection: Connection) -> None:
    body = gzip.compress(bytes(64 * MEBI))
    headers = ("Content-Encoding: gzip", f"Content-Length: {len(body)}")
    connection.answer("200 OK", *headers, body=body)


def no_http(connection: Connection) -> None:
    connection.send(b"220 mail.example ESMTP\r\n" + b"\0\xff" * 1000)


def redirects_to_itself(connection: Connection) -> None:
    connection.answer("301 Moved", f"Location: {connection.path}a")


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    with allow_hosts(["127.0.0.1"]):
        yield


@pytest.mark.parametrize(
    "behave",
    [
        *(says_nothing, dribbles_headers, dribbles_the_body, one_header_of_a_gibibyte),
        *(a_huge_object_whole, a_bomb, no_http, redirects_to_itself),
    ],
    ids=lambda one: one.__name__,
)
def test_a_bad_server_costs_its_item(behave: Behave, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(remote, "TIMEOUT_S", 1.0)
    remote._client.cache_clear()
    began = time.monotonic()
    with server(behave) as bad:
        found = probe(Item(f"{bad.url}/a.png"))
    assert reason(found).isprintable()
    assert time.monotonic() - began < 10


def test_more_than_was_asked_for_costs_a_worker_s_share() -> None:
    with (
        server(more_than_the_range) as bad,
        LocalPool(PROBE, workers=1, memory_bytes=MEBI << 8) as pool,
    ):
        (answer,) = pool.submit([ProbeTask(Item(f"{bad.url}/a.png"))])()
    assert isinstance(decode_line("a.png", answer.line), Skipped)


def test_a_size_that_is_not_true_does_not_fill_the_disk(tmp_path: Path) -> None:
    with server(a_huge_object_whole) as bad, pytest.raises(OSError, match="larger than 4 GiB"):
        local_copy(f"{bad.url}/a.png", tmp_path)
    assert list(tmp_path.iterdir()) == []


def slowly(connection: Connection) -> None:
    """Each answer whole and just in time, of an archive that is said to be huge."""
    connection.wait(0.2)
    if not connection.range:
        connection.answer("200 OK", f"Content-Length: {1 << 40}")
        return
    start, _ = connection.range
    said = f"Content-Range: bytes {start}-{start + 511}/{1 << 40}"
    body = member("a/", kind=tarfile.DIRTYPE).tobuf()
    connection.answer("206 Partial Content", said, "Content-Length: 512", body=body)


def test_an_archive_of_such_a_server_ends_too() -> None:
    with server(slowly) as bad:
        url = f"{bad.url}/a.tar"
        found = list(SubprocessSource(ArchiveSource("tar", url), url, silence_s=3).items())
    assert found == [Skipped(url, "the decoder took more than 3 s")]
