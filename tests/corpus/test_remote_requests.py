"""Requests that name media elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcalib.census.counter import count_corpus
from mmcalib.corpus.requests import RequestsSource
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.domain.shapes import ImageShape
from mmcalib.storage.location import allowing
from tests.census.looking import prober
from tests.corpus.media import png
from tests.corpus.serving import serving


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    with allowing(["example.com,127.0.0.1", "bucket"]):
        yield


def requests(folder: Path, *urls: str) -> RequestsSource:
    parts = [[{"type": "image_url", "image_url": {"url": url}}] for url in urls]
    lines = [json.dumps({"messages": [{"role": "user", "content": part}]}) for part in parts]
    (folder / "requests.jsonl").write_text("\n".join(lines))
    return RequestsSource(folder / "requests.jsonl", scratch=folder / "scratch")


@pytest.mark.parametrize("url", ["https://example.com/a%20b.png?size=large", "s3://bucket/a.png"])
def test_remote_media_are_items_where_that_is_allowed(tmp_path: Path, url: str) -> None:
    (prompt,) = requests(tmp_path, url).prompts()
    assert isinstance(prompt, Prompt)
    assert prompt.items == (Item(url, "image"),)
    content = prompt.messages[0]["content"]
    assert content == [{"type": "image_url", "image_url": {"url": url}}]


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example.com/a.png",
        "https://example.com.evil/a.png",
        "https://example.com@evil/a.png",
        "https://evil/example.com",
        "http://[example.com]/a.png",
        "http:///a.png",
        "s3://buckets/a.png",
    ],
)
def test_the_refusal_names_the_option(tmp_path: Path, url: str) -> None:
    found = requests(tmp_path, url, "https://example.com/a.png")
    reason = "remote URL: its host is not one of --allowed-media-domains"
    assert next(found.prompts()) == Skipped("requests.jsonl:1", reason)


@pytest.mark.parametrize(
    "url",
    [
        "zip://a.png::/etc/secret.zip",
        "https://example.com/a.zip::file:///etc/passwd",
        "local:///etc/passwd",
        "memory://a.png",
        "simplecache::https://example.com/a.png",
    ],
)
def test_no_url_leads_back_to_this_disk(tmp_path: Path, url: str) -> None:
    (found,) = [*requests(tmp_path, url, "https://example.com/a.png").prompts()][:1]
    assert isinstance(found, Skipped)
    assert url not in [item.path for item in requests(tmp_path, url).items()]


def test_a_server_that_fails_costs_its_request(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    with serving() as served:
        good = served.put("a.png", png(40, 24))
        taken = count_corpus([requests(tmp_path, good, f"{served.url}/none.png")], prober())
    assert [entry.shape for entry in taken.census.shapes()] == [ImageShape(40, 24)]
    assert taken.prompts.prompts() == 1
    assert [skipped.path for skipped in taken.skipped] == [
        f"{served.url}/none.png",
        "requests.jsonl:2",
    ]
