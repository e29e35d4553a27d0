"""URLs that lead, or are led, to where only this machine gets."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from mmcalib.corpus.requests import RequestsSource
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.domain.shapes import ImageShape
from mmcalib.media.probe import probe
from tests.corpus.media import png
from tests.security.servers import Connection, server

pytest.importorskip("aiohttp")
pytest.importorskip("fsspec")

from mmcalib.locations import web as subject
from mmcalib.locations.reach import Reach, is_known_here, reach_of
from mmcalib.locations.web import Web
from mmcalib.locations.web_file import WebFile

PICTURE = png(40, 24)


def picture(connection: Connection) -> None:
    connection.answer_range(PICTURE)


def redirect(to: str):
    return lambda connection: connection.answer("302 Found", f"Location: {to}")


def reach(address: str) -> Reach:
    """As if the second address of this machine were on the internet, the third in its network."""
    pretended = {"127.0.0.2": Reach.PUBLIC, "127.0.0.3": Reach.PRIVATE}
    return pretended.get(address, reach_of(address))


def read(url: str) -> bytes:
    return WebFile(url, Web(reach)).read()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.215.14", Reach.PUBLIC),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", Reach.PUBLIC),
        ("10.0.0.5", Reach.PRIVATE),
        ("172.31.255.255", Reach.PRIVATE),
        ("192.168.1.1", Reach.PRIVATE),
        ("100.64.0.1", Reach.PRIVATE),
        ("fc00::1", Reach.PRIVATE),
        ("127.0.0.1", Reach.HERE),
        ("127.8.9.10", Reach.HERE),
        ("0.0.0.0", Reach.HERE),
        ("::", Reach.HERE),
        ("::1", Reach.HERE),
        ("::ffff:127.0.0.1", Reach.HERE),
        ("::127.0.0.1", Reach.HERE),
        ("::ffff:10.0.0.5", Reach.PRIVATE),
        ("64:ff9b::a00:5", Reach.PRIVATE),
        ("2002:a00:5::", Reach.PRIVATE),
        ("169.254.169.254", Reach.NEVER),
        ("::ffff:169.254.169.254", Reach.NEVER),
        ("64:ff9b::a9fe:a9fe", Reach.NEVER),
        ("fe80::1%eth0", Reach.NEVER),
        ("fd00:ec2::254", Reach.NEVER),
        ("100.100.100.200", Reach.NEVER),
        ("168.63.129.16", Reach.NEVER),
        ("224.0.0.1", Reach.NEVER),
    ],
)
def test_how_far_inside_an_address_lies(address: str, expected: Reach) -> None:
    assert reach_of(address) == expected


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.0.0.2", "127.0.0.1"), ("127.0.0.2", "127.0.0.3"), ("127.0.0.3", "127.0.0.1")],
    ids=["public-to-loopback", "public-to-private", "private-to-loopback"],
)
def test_a_host_does_not_lead_further_inside(host: str, inside: str) -> None:
    with (
        server(picture, inside) as secret,
        server(redirect(f"{secret.url}/a.png"), host) as outside,
    ):
        with pytest.raises(OSError, match=f"redirects to {inside}"):
            read(f"{outside.url}/a.png")
        assert secret.asked == []


def test_not_even_by_way_of_others_or_for_later_bytes() -> None:
    data = PICTURE + bytes(1 << 18)

    def at_last(connection: Connection) -> None:
        if connection.range and connection.range[0]:
            redirect(f"{secret.url}/a.png")(connection)
        else:
            connection.answer_range(data)

    with server(picture) as secret, server(at_last, "127.0.0.2") as outside:
        hop = redirect(f"{secret.url}/b.png")
        with server(hop, "127.0.0.2") as second, server(redirect(second.url), "127.0.0.2") as first:
            for url in (first.url, outside.url):
                with pytest.raises(OSError, match=r"redirects to 127\.0\.0\.1"):
                    read(f"{url}/a.png")
        assert secret.asked == []


def test_a_host_may_lead_to_its_own_kind_and_outwards() -> None:
    for host, to in (("127.0.0.2", "127.0.0.2"), ("127.0.0.1", "127.0.0.2")):
        with server(picture, to) as second, server(redirect(f"{second.url}/b"), host) as first:
            assert read(f"{first.url}/a.png") == PICTURE


@pytest.mark.parametrize(
    "to",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/a.png",
        "data:image/png;base64,AAAA",
        "http://",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/a.png",
        "http://2852039166/",
        "//0xa9.0xfe.0xa9.0xfe/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[zz]/",
        "",
    ],
)
def test_redirects_that_nobody_follows(to: str) -> None:
    with server(redirect(to)) as first:
        found = probe(Item(f"{first.url}/a.png"))
        assert isinstance(found, Skipped)
        assert found.reason.startswith("cannot be read: ")
        assert "redirects" in found.reason or found.reason.endswith("where no media are")
        assert len(first.asked) <= subject._MOST_REDIRECTS + 1


def test_redirects_without_end_are_left() -> None:
    with server(lambda connection: redirect(f"{connection.path}a")(connection)) as first:
        found = probe(Item(f"{first.url}/a"))
        assert isinstance(found, Skipped)
        assert found.reason == "cannot be read: more than 10 redirects"
        assert len(first.asked) == 11


class Rebound(subject._Names):
    """A name whose owner changes where it leads to, each time that it is asked."""

    looked_up = 0

    async def _look_up(self, host: str, port: int) -> None:
        address = "127.0.0.1" if self.looked_up else "127.0.0.2"
        type(self).looked_up += 1
        entry = {"host": address, "port": port, "hostname": host, "family": socket.AF_INET}
        self._found[host, port] = (float("inf"), [{**entry, "proto": 0, "flags": 0}])


def test_a_name_is_connected_to_as_it_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_Names", Rebound)
    with server(picture, "127.0.0.2") as outside:
        port = outside.url.rpartition(":")[2]
        assert read(f"http://media.example:{port}/a.png") == PICTURE
    assert Rebound.looked_up == 1


def test_a_name_of_the_dns_does_not_lead_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_Names", Rebound)
    monkeypatch.setattr(Rebound, "looked_up", 1)
    with server(picture) as secret:
        port = secret.url.rpartition(":")[2]
        with pytest.raises(OSError, match=r"media\.example leads to this machine's own address"):
            read(f"http://media.example:{port}/a.png")
        assert secret.asked == []
        assert read(f"http://media:{port}/a.png") == read(f"http://a.localhost:{port}/") == PICTURE


def test_this_machine_by_its_own_names() -> None:
    assert is_known_here("localhost")
    assert is_known_here("a.localhost.")
    assert not is_known_here("localhost.example.com")


def requests(folder: Path, *urls: str) -> RequestsSource:
    parts = [[{"type": "image_url", "image_url": {"url": url}}] for url in urls]
    lines = [json.dumps({"messages": [{"role": "user", "content": part}]}) for part in parts]
    (folder / "requests.jsonl").write_text("\n".join(lines))
    scratch = folder / "scratch"
    return RequestsSource(folder / "requests.jsonl", scratch=scratch, allow_url=True)


def test_a_host_of_ones_own_is_read(tmp_path: Path) -> None:
    with server(picture) as own:
        for item in requests(tmp_path, f"{own.url}/a.png").items():
            assert isinstance(item, Item)
            assert probe(item) == ImageShape(40, 24)


def test_a_scheme_in_capitals_is_no_way_around_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "HTTP:").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(PICTURE)
    monkeypatch.chdir(here)
    url = "HTTP://../../secret.png"
    assert os.path.exists(url)
    (found,) = requests(here, url).prompts()
    assert isinstance(found, Prompt)
    (item,) = found.items
    assert item.path == "http://../../secret.png"
    assert isinstance(probe(item), Skipped)
