"""Hostile requests: each unusable line is skipped with its reason, in bounded memory and time."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmcalib.census.counter import count_corpus
from mmcalib.corpus.requests import RequestsSource
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.domain.shapes import Shape
from mmcalib.errors import CorpusError
from mmcalib.media.probe import probe
from tests.census.looking import prober

TIMEOUT_S = 20
MOST_RSS_MIB = 300
MIB = 1 << 20


def user(*urls: object) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}]}


NO_URLS: tuple[object, ...] = (None, 1, [], {}, True, "\ud800", "\udcff.png")
GOOD = json.dumps(user("a.png")).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("L", (9, 8)).save(tmp_path / "a.png")
    return tmp_path


def source(folder: Path, *lines: bytes) -> RequestsSource:
    (folder / "requests.jsonl").write_bytes(b"\n".join(lines))
    return RequestsSource(folder / "requests.jsonl", scratch=folder / "scratch")


def between_good_ones(folder: Path, line: bytes) -> str:
    """Why `line` is skipped; the requests before and after it must be read all the same."""
    taken = count_corpus([source(folder, GOOD, line, GOOD)], prober())
    assert taken.prompts.prompts() == 2
    (skipped,) = [one for one in taken.skipped if one.path.startswith("requests.jsonl")]
    assert skipped.path == "requests.jsonl:2"
    assert 0 < len(skipped.reason) <= 200
    assert skipped.reason.isprintable()
    return skipped.reason


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com/a.png", "HTTPS://example.com/a.png", "ftp://h/a", "gs://b/a"),
        *("http://169.254.169.254/latest", "http://[::1]/a", "ws://h", "rtsp://h/a", "tcp://h:1"),
        *("http+unix://s/a", "file://example.com/a.png", "file://127.0.0.1/a.png"),
    ],
)
def test_no_host_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    reason = between_good_ones(folder, json.dumps(user("a.png", url)).encode())
    assert reason.startswith(
        ("remote URL", "URL of a scheme that is not read", "file URL of another host: ")
    )


@pytest.mark.parametrize(
    "line",
    [
        *(b"\0", b"\0" * 4096, b"\xff\xfe{\0}\0", b'{"messages": "\0"}', GOOD + b"\0", GOOD + GOOD),
        *(b"null", b"true", b"1", b"NaN", b'"words"', b"[[]]", b"9" * 5000, b"-", b"{" * 9999),
        *(b'{"messages": null}', b'{"messages": {}}', b'{"messages": [null]}'),
        *(b'{"messages": [[]]}', b'{"messages": [{"role": 1}]}', b'{"body": [1]}'),
        *(b'{"messages": [{"role": "u", "content": {}}]}', b'{"messages": [{}], "messages": 7}'),
        b'{"messages": [{"role": "u", "content": "\\ud800"}]}',
        *(json.dumps(user(url)).encode() for url in NO_URLS),
        *(json.dumps(user(url)).encode() for url in ("a.png/b", "a.png\0", ".", "data:,", "data:")),
        json.dumps(user("data:image/png;base64," + "A" * 400)).encode(),
        b'{"messages": [%s]}' % b",".join([b"{}"] * MIB),
    ],
)
def test_a_damaged_line_costs_only_itself(folder: Path, line: bytes) -> None:
    assert between_good_ones(folder, line)


@pytest.mark.parametrize(
    "text",
    [
        *(b"\xed\xa0\x80", b"\xed\xb3\xbf.", b"\xed\xa0\xbd\xed\xb8\x80"),
        *(b"\xff", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe2\x82"),
    ],
)
def test_what_is_no_utf_8_is_no_request(folder: Path, text: bytes) -> None:
    """Python's JSON takes halves of surrogate pairs that are written as bytes; nothing that writes
    a request again does.
    """
    line = json.dumps({"messages": [{"role": "user", "content": "|"}]}).encode()
    assert between_good_ones(folder, line.replace(b"|", text)) == "not UTF-8"


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le"])
def test_a_request_in_another_encoding_is_none(folder: Path, encoding: str) -> None:
    line = json.dumps({"messages": [{"role": "user", "content": "|"}]}).replace("|", "\ud800")
    between_good_ones(folder, line.encode(encoding, "surrogatepass"))


def test_lines_may_end_in_any_way(folder: Path) -> None:
    found = list(source(folder, GOOD + b"\r", b" \t\r", b"", GOOD).prompts())
    assert [one.origin for one in found if isinstance(one, Prompt)] == [
        "requests.jsonl:1",
        "requests.jsonl:4",
    ]


@pytest.mark.parametrize("target", ["/dev/zero", ".", "nowhere", "requests.jsonl"])
def test_a_requests_file_that_is_no_file(tmp_path: Path, target: str) -> None:
    (tmp_path / "requests.jsonl").symlink_to(target)
    with pytest.raises(CorpusError, match=r"(no such|not a) requests file"):
        RequestsSource(tmp_path / "requests.jsonl", scratch=tmp_path)


def test_a_file_that_goes_after_its_request_was_read(folder: Path) -> None:
    Image.new("L", (9, 8)).save(folder / "b.png")
    found = source(folder, json.dumps(user("b.png")).encode(), GOOD)

    def look(item: Item) -> Shape | Skipped:
        if item.path.endswith("b.png"):
            Path(item.path).unlink(missing_ok=True)
        return probe(item)

    taken = count_corpus([found], prober(look))
    reasons = {one.path: one.reason for one in taken.skipped}
    assert taken.prompts.prompts() == taken.census.items() == 1
    assert reasons.keys() == {"requests.jsonl:1", str(folder / "b.png")}
    assert all("no such file" in reason for reason in reasons.values())


READ = """
import json, sys
from pathlib import Path
from mmcalib.corpus.requests import RequestsSource
path = Path(sys.argv[1])
found = RequestsSource(path, scratch=path.parent / "scratch")
read = [getattr(one, "reason", "good") for one in found.prompts()]
items = sum(1 for _ in found.items())
peak = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
print(json.dumps([read, items, int(peak[0].split()[1]) >> 10]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_long_lines_take_little_memory(folder: Path) -> None:
    path = folder / "requests.jsonl"
    start, end = json.dumps(user("data:image/png;base64,|")).encode().split(b"|")
    with path.open("wb") as file:
        for size_mib in (100, 47):
            file.write(GOOD + b"\n" + start)
            for _ in range(size_mib):
                file.write(b"A" * MIB)
            file.write(end + b"\n")
        file.write(GOOD + b"\n" + b"[" * 100 * MIB)
    command = [sys.executable, "-c", READ, str(path)]
    run = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
    read, items, rss_mib = json.loads(run.stdout)
    long = "line of more than 48 MiB"
    assert read == ["good", long, "good", "good", "good", long]
    assert items == 2
    assert rss_mib < MOST_RSS_MIB
