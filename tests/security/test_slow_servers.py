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


def sending(first: bytes, more: bytes = b"", pause_s: float = 0.0) -> Behave:
    """Send the first bytes, and the others again and again for as long as anybody listens."""

    def behave(connection: Connection) -> None:
        connection.send(first)
        while more and connection.send(more) and connection.wait(pause_s):
            pass

    return behave


def whole(size_bytes: int) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {size_bytes}\r\n\r\n".encode()


def a_bomb(connection: Connection) -> None:
    body = gzip.compress(bytes(64 * MEBI))
    headers = ("Content-Encoding: gzip", f"Content-Length: {len(body)}")
    connection.answer("200 OK", *headers, body=body)


PARTIAL = b"HTTP/1.1 206 Partial Content\r\n"
MORE_THAN_THE_RANGE = sending(
    PARTIAL + b"Content-Range: bytes 0-65535/1000000\r\n\r\n", bytes(MEBI)
)
A_HUGE_OBJECT = sending(whole(1 << 40), bytes(MEBI))
BAD: dict[str, Behave] = {
    "says nothing": lambda connection: connection.wait(20),
    "dribbles headers": sending(PARTIAL, b"X-A: b\r\n", 0.05),
    "dribbles the body": sending(whole(1_000_000) + PICTURE, b"\0", 0.1),
    "one header of a gibibyte": sending(PARTIAL + b"X-A: ", b"b" * MEBI),
    "a huge object whole": A_HUGE_OBJECT,
    "a bomb": a_bomb,
    "no HTTP": sending(b"220 mail.example ESMTP\r\n" + b"\0\xff" * 1000),
    "redirects to itself": lambda connection: connection.answer(
        "301 Moved", f"Location: {connection.path}a"
    ),
}


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    with allow_hosts(["127.0.0.1"]):
        yield


@pytest.mark.parametrize("behave", BAD.values(), ids=BAD)
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
        server(MORE_THAN_THE_RANGE) as bad,
        LocalPool(PROBE, workers=1, memory_bytes=MEBI << 8) as pool,
    ):
        (answer,) = pool.submit([ProbeTask(Item(f"{bad.url}/a.png"))])()
    assert isinstance(decode_line("a.png", answer.line), Skipped)


def test_a_size_that_is_not_true_does_not_fill_the_disk(tmp_path: Path) -> None:
    with server(A_HUGE_OBJECT) as bad, pytest.raises(OSError, match="larger than 4 GiB"):
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
