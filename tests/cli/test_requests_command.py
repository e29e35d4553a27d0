"""`mmcalib requests` as a user types it, and what the other commands read of its file."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
import soundfile
from PIL import Image

from mmcalib.domain.shapes import VideoShape
from mmcalib.media.blank import write_blank
from tests.corpus.test_exports import BODY, OBSERVATION, PAYLOAD, SPEND_LOG, image, png
from tests.schemas import fits


def chat(*parts: Any, **more: Any) -> dict[str, Any]:
    words = {"type": "text", "text": "Was steht auf dem Schild? SECRET"}
    return {"messages": [{"role": "user", "content": [*parts, words]}], **more}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A proxy's: a file of its own folder, a picture in the line twice and once in another line."""
    folder = tmp_path / "proxy"
    folder.mkdir()
    Image.new("RGB", (40, 30)).save(folder / "cat.png")
    soundfile.write(folder / "s.wav", [0.1] * 800, 8000)
    write_blank(VideoShape(6, 2.0, 3.0, 64, 48), 0, folder)
    sound = {"type": "audio_url", "audio_url": {"url": f"file://{folder}/s.wav"}}
    clip = {"type": "video_url", "video_url": {"url": "video-6x64x48-0.mp4"}}
    lines = [
        {"timestamp": 1785578400, "request": chat(image("cat.png"), sound, clip, max_tokens=9)},
        {
            "timestamp": 1785578401,
            "request": {"body": json.dumps(chat(image(png()), image(png())))},
        },
        {"request": chat(image(png())), "response": {"usage": {"completion_tokens": 21}}},
        {"request": chat(image(png(colour=9)))},
        {"level": "info", "msg": "started"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "proxy.jsonl").write_text(text + '{"request": {"mess\n')
    return folder / "proxy.jsonl"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def urls(line: dict[str, Any]) -> list[str]:
    parts = [part for message in line["messages"] for part in message["content"]]
    return [part[part["type"]]["url"] for part in parts if part["type"] != "text"]


def test_a_log_becomes_what_scan_reads(cli, log: Path, tmp_path: Path) -> None:
    said = cli("requests", log, "--json")
    assert said.code == 0, said.err
    fits("requests", said.out)
    document = json.loads(said.out)
    assert (document["entries"], document["requests"], document["skipped"]) == (6, 4, 2)
    assert (document["timed"], document["answers"]) == (2, 2)
    assert document["items"] == {"audio": 1, "image": 5, "video": 1}
    assert [(one["requests"], one["first"]) for one in document["left_out"]] == [
        (1, "proxy.jsonl:5"),
        (1, "proxy.jsonl:6"),
    ]
    first, second, third, fourth = read(tmp_path / "requests.jsonl")
    assert (first["timestamp"], first["max_tokens"]) == (1785578400, 9)
    assert third["max_completion_tokens"] == 21
    assert urls(first)[0] == str(log.parent / "cat.png")
    assert urls(second) == urls(third) * 2 != urls(fourth) * 2
    assert len(list((tmp_path / "requests-media").iterdir())) == 2
    scanned = cli(
        *("scan", "--requests", "requests.jsonl", "--json", "--strict"),
        *("--allowed-local-media-path", tmp_path),
    )
    assert scanned.code == 0, scanned.err
    assert json.loads(scanned.out)["corpus"]["prompts"] == 4


def test_redacted_requests_hold_the_same_shapes_and_no_content(
    cli, log: Path, tmp_path: Path
) -> None:
    counts = []
    for name, more in (("plain", []), ("bare", ["--redact"])):
        assert cli("requests", log, "--out", f"{name}/r.jsonl", *more).code == 0
        words = ["scan", "--requests", f"{name}/r.jsonl", "--json", "--strict"]
        counts.append(cli(*words, "--allowed-local-media-path", tmp_path).out)
    assert json.loads(counts[0])["corpus"] == json.loads(counts[1])["corpus"]
    bare = (tmp_path / "bare" / "r.jsonl").read_text()
    assert [word for word in ("SECRET", "Schild", "cat", "proxy", "base64") if word in bare] == []
    first, second, third, fourth = read(tmp_path / "bare" / "r.jsonl")
    # Whoever gets the folder needs no other.
    assert all(not os.path.isabs(url) for line in (first, second) for url in urls(line))
    assert urls(second) == urls(third) * 2
    assert urls(third) != urls(fourth)
    kept = tmp_path / "bare"
    assert (kept / urls(third)[0]).read_bytes() != (kept / urls(fourth)[0]).read_bytes()


def test_files_outside_are_not_looked_at(cli, log: Path, tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "outside.png")
    log.write_text(json.dumps(chat(image(f"file://{tmp_path}/outside.png"))))
    said = cli("requests", log, "--redact")
    assert (said.code, (tmp_path / "requests.jsonl").exists()) == (2, False)
    assert "--allowed-local-media-path" in said.err
    assert cli("requests", log, "--redact", "--allowed-local-media-path", tmp_path).code == 0


def test_what_is_elsewhere_is_skipped_where_its_shape_is_needed(cli, log: Path) -> None:
    log.write_text("\n".join(json.dumps(line) for line in (BODY, chat())))
    said = cli("requests", log, "--redact", "--strict")
    assert said.code == 3
    assert "--allow-url" in said.err
    assert cli("requests", log, "--force", "--strict").code == 0


def test_several_logs_of_several_forms_make_one_file(cli, tmp_path: Path) -> None:
    (tmp_path / "spend.json").write_text(json.dumps([SPEND_LOG, PAYLOAD], indent=1))
    (tmp_path / "langfuse.jsonl").write_text(json.dumps(OBSERVATION))
    said = cli("requests", "spend.json", "langfuse.jsonl", "--out", "all.jsonl")
    assert said.code == 0, said.err
    lines = read(tmp_path / "all.jsonl")
    assert [line["timestamp"] for line in lines] == [1785578400.5] * 3
    # Nobody's key, model or user goes along.
    assert {name for line in lines for name in line} == {
        *("messages", "timestamp", "max_tokens", "max_completion_tokens")
    }


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["nowhere.jsonl"], 1, "cannot read"),
        (["proxy/proxy.jsonl", "--from", "nginx"], 2, "none of auto"),
        (["proxy/proxy.jsonl", "--from", "sharegpt"], 1, "no request in"),
        (["proxy/proxy.jsonl", "--out", "proxy"], 2, "--force"),
    ],
)
def test_errors_are_a_line_and_leave_nothing(
    cli, log: Path, tmp_path: Path, words: list[str], code: int, hint: str
) -> None:
    said = cli("requests", *words)
    assert said.code == code
    assert hint in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["proxy"]


def test_a_file_that_is_there_stays(cli, log: Path, tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text("mine")
    assert cli("requests", log).code == 2
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"level": "info"}\n')
    assert cli("requests", empty, "--force").code == 1
    assert (tmp_path / "requests.jsonl").read_text() == "mine"


def test_a_packed_log_is_one_error(cli: Any, tmp_path: Path) -> None:
    """Finding of a user: it was said not to be JSON."""
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress(b"{}\n"))
    ended = cli("requests", log, "--out", tmp_path / "out.jsonl")
    assert ended.code == 1
    assert f"{log} is packed by gzip: unpack it first" in ended.err
    assert f"try: gzip -dc {log} > log.jsonl" in ended.err
    assert not (tmp_path / "out.jsonl").exists()
