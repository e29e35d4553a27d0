"""URLs that lead, or are led, to hosts that nobody allowed."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

from mmcalib.corpus.archives import ArchiveSource, SubprocessSource
from mmcalib.corpus.requests import Reading, RequestsSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.media.probe import probe
from mmcalib.storage.location import allow_hosts, is_allowed
from tests.corpus.listed import prompts_of, reason
from tests.corpus.media import png
from tests.corpus.tars import tar
from tests.e2e.media import clip
from tests.security.servers import Connection, server

pytest.importorskip("aiohttp")
pytest.importorskip("fsspec")
PICTURE = png(40, 24)


def picture(connection: Connection) -> None:
    connection.answer_range(PICTURE)


def redirect(to: str, header: str = "Location"):
    return lambda connection: connection.answer("302 Found", f"{header}: {to}")


def test_what_one_thread_allows_no_other_reads() -> None:
    with allow_hosts(["host.example"]), ThreadPoolExecutor(1) as other:
        url = "https://host.example/a.png"
        assert (is_allowed(url), other.submit(is_allowed, url).result()) == (True, False)
        copied = copy_context()
    assert (is_allowed(url), copied.run(is_allowed, url)) == (False, True)


def test_a_reader_of_archives_knows_no_hosts_of_before(tmp_path: Path) -> None:
    """One that is idle is kept, with what it was begun with."""
    data = tar(tmp_path / "a.tar", ("a.png", PICTURE)).read_bytes()
    with server(lambda connection: connection.answer_range(data)) as host:
        url = f"{host.url}/a.tar"

        def found() -> list[type]:
            return [type(one) for one in SubprocessSource(ArchiveSource("tar", url), url).items()]

        assert found() == [Skipped]
        with allow_hosts(["127.0.0.1"]):
            assert found() == [Item]
        assert found() == [Skipped]


@pytest.mark.parametrize("header", ["Location", "URI"])
def test_a_redirect_leads_to_allowed_hosts_alone(header: str) -> None:
    with (
        server(picture, "127.0.0.2") as second,
        server(redirect(f"{second.url}/b.png", header)) as first,
    ):
        item = Item(f"{first.url}/a.png")
        with allow_hosts(["127.0.0.1"]):
            to = f"redirects to {second.url}/b.png: its host is not in --allowed-media-domains"
            assert reason(probe(item)) == f"cannot be read: {to}"
            assert second.asked == []
        with allow_hosts(["127.0.0.1", "127.0.0.2"]):
            assert probe(item) == ImageShape(40, 24)


@pytest.mark.parametrize(
    "to",
    ["file:///etc/passwd", "ftp://127.0.0.1/a.png", "http://", "//2130706433/a.png", "//[zz]/"],
)
def test_redirects_that_nobody_follows(to: str) -> None:
    with server(redirect(to)) as first, allow_hosts(["127.0.0.1"]):
        assert isinstance(probe(Item(f"{first.url}/a.png")), Skipped)
        assert set(first.asked) == {"/a.png"}


@pytest.mark.parametrize("between", ["\\@", "\\/@", "#@", "?@", "@", "%40", "\t@", ";@"])
def test_a_host_is_the_one_that_is_connected_to(between: str) -> None:
    with server(picture) as secret, allow_hosts(["localhost"]):
        port = secret.url.rpartition(":")[2]
        for url in (
            f"http://127.0.0.1:{port}{between}localhost:{port}/a.png",
            f"http://localhost:{port}{between}127.0.0.1:{port}/a.png",
        ):
            probe(Item(url))
            assert secret.hosts <= {f"localhost:{port}"}


def test_hosts_are_allowed_meanwhile() -> None:
    with allow_hosts(["A.example,b.example"]), allow_hosts([]):
        assert is_allowed("https://a.example/x")
        assert is_allowed("https://B.Example:8/x")
        assert not is_allowed("https://c.example/a.example")
        assert not is_allowed("https:///x")
    assert not is_allowed("https://a.example/x")


@pytest.mark.parametrize("name", ["a.png", "a.tar", "a.zip"])
def test_data_of_another_host_is_one_line(cli: Any, name: str) -> None:
    with server(picture) as host:
        ended = cli("scan", "--data", f"{host.url}/{name}")
        assert ended.code == 2
        assert ended.err.splitlines() == [
            f"error: {host.url}/{name}: its host is not in --allowed-media-domains",
            "  try: --allowed-media-domains 127.0.0.1",
        ]
        assert host.asked == []


def test_workers_know_what_is_allowed(cli: Any) -> None:
    with server(picture) as host:
        words = ("--data", f"{host.url}/a.png", "--allowed-media-domains", "localhost,127.0.0.1")
        ended = cli("scan", *words, "--json", "--quiet")
    assert json.loads(ended.out)["corpus"]["items"] == 1


def test_a_scheme_in_capitals_is_no_way_around_the_root(tmp_path: Path, monkeypatch) -> None:
    here = tmp_path / "here"
    (here / "HTTP:").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(PICTURE)
    monkeypatch.chdir(here)
    url = "HTTP://../../secret.png"
    assert os.path.exists(url)
    line = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]}
    (here / "requests.jsonl").write_text(json.dumps(line))
    with allow_hosts([".."]):
        (found,) = prompts_of(RequestsSource(here / "requests.jsonl", Reading(tmp_path / "s")))
        assert found.items[0].path == "http://../../secret.png"
        assert isinstance(probe(found.items[0]), Skipped)


ID3 = b"ID3\x03\x00\x00\x00\x00\x00\x0a" + bytes(10)
INDEX = b"# VobSub index file, v7 (do not modify this line!)\nsize: 720x576\nid: en, index: 0\n"


def test_an_index_whose_file_is_not_there_is_there_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.idx"
    path.write_bytes(ID3 + INDEX + b"timestamp: 00:00:01:000, filepos: 000000000\n" * 9)
    assert reason(probe(Item(str(path)))) == "playlist that refers to other files"


def test_a_file_of_any_name_is_opened(tmp_path: Path) -> None:
    for name in ("a.mp4", "http:a.mp4", "file:b.mp4", "concat:a|b.mp4", "%03d.mp4", "pipe:0.mp4"):
        clip(tmp_path / name, 160, 120, 5)
        assert isinstance(probe(Item(str(tmp_path / name))), VideoShape), name
