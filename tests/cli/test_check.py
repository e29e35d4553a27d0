"""`mmcalib check` on the example calibration: no engine, only headers."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as arrow
import pytest
from PIL import Image
from pyarrow import parquet

import mmcalib
from mmcalib import Calibration
from mmcalib.admission.check import check
from mmcalib.domain.shapes import ImageShape
from mmcalib.results.check import CheckedItem
from tests.corpus.media import data_url, png, request
from tests.corpus.serving import serving
from tests.corpus.tars import tar
from tests.odd_media import silence
from tests.report.example import calibration, changed
from tests.schemas import fits


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.json"
    calibration().save(path)
    return path


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A page that fits, a strip that is too slim, and a text."""
    folder = tmp_path / "new"
    folder.mkdir()
    Image.new("RGB", (1000, 750)).save(folder / "page.png")
    Image.new("RGB", (3, 700)).save(folder / "strip.png")
    (folder / "notes.txt").write_text("words")
    return folder


def objects(out: str) -> list[dict[str, object]]:
    for line in out.splitlines():
        fits("check", line)
    return [json.loads(line) for line in out.splitlines()]


def feed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_what_shares_a_reason_is_one_line(cli, kept: Path, new: Path) -> None:
    for number in range(4):
        Image.new("RGB", (3, 700 + number)).save(new / f"strip-{number}.png")
    (new / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    ended = cli("check", "--calibration", kept, new)
    shown = [line for line in ended.err.splitlines() if not line.startswith("checking")]
    assert shown == [
        "rejected 5 files: aspect ratio 233 to 234:1, the processor takes at most 200:1"
        " (strip-0.png, strip-1.png, strip-2.png, ...)",
        "  → crop or pad to at most 200:1",
        f"rejected {new / 'torn.png'}: image header is damaged, or vLLM does not open the format",
        "  → leave it out, or use another copy",
        "1 of 7 fit, 6 do not, 1 not media",
        f"error: 6 of 7 do not fit {kept}",
        "  try: --json lists each; apply the remedies above, or mmcalib run with such media",
    ]
    *offenders, _ = objects(cli("check", "--calibration", kept, "--json", new).out)
    assert len(offenders) == 6


@pytest.mark.parametrize("column", ["label", "caption"])
def test_scan_check_and_filter_agree_on_the_rows_of_a_table(cli, kept, tmp_path, column) -> None:
    """A row without a picture is missing unless its text makes it a request of its own."""
    cells = [png(64, 64), None, b"<!DOCTYPE html><p>404</p>", png(64, 64)[:40], b"", png(80, 64)]
    rows = [
        {"image": None if data is None else {"bytes": data, "path": None}, column: "x"}
        for data in cells
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "images.parquet")
    ended = cli("check", "--calibration", kept, tmp_path / "images.parquet")
    bad = range(1, 5) if column == "label" else range(2, 5)
    for number in bad:
        assert f"{tmp_path}/images.parquet:{number}: " in ended.err
    assert f"{6 - len(bad)} of 6 fit, {len(bad)} do not\n" in ended.err
    scanned = json.loads(cli("scan", "--data", tmp_path / "images.parquet", "--json").out)
    assert (scanned["corpus"]["items"], len(scanned["skipped"])) == (2, len(bad))
    found = Calibration.load(kept)
    assert len(mmcalib.filter(rows, found, key=lambda row: row["image"])) == 2


def test_rows_and_samples_are_checked_as_the_requests_that_they_are(cli, kept, tmp_path) -> None:
    two = [{"bytes": png(64, 64 + n), "path": None} for n in range(2)]
    rows = [{"images": two[:1], "question": "x"}, {"images": two * 3, "question": "x"}]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    many = ((f"a.{n}.png", png(64, 64 + n)) for n in range(5))
    tar(tmp_path / "t.tar", *many, ("b.png", png(64, 64)), ("b.txt", b"x"))
    ended = cli(
        "check", "--calibration", kept, "--json", tmp_path / "t.parquet", tmp_path / "t.tar"
    )
    *bad, summary = objects(ended.out)
    assert [one["origin"] for one in bad] == [f"{tmp_path}/t.parquet:1", f"{tmp_path}/t.tar:a"]
    assert [str(one["reason"]).partition(" items, limit")[0] for one in bad] == [
        "6 image",
        "5 image",
    ]
    assert (summary["checked"], summary["no"]) == (4, 2)


def test_sizes_stand_wherever_files_do(cli, kept: Path, tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text(request("size:640x480", "size:640x480"))
    (tmp_path / "paths.txt").write_text("size:640x480\nsize:640x480\nsize:700x3\n")
    rows = [{"image": {"bytes": None, "path": "size:64x64"}}] * 2
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    sources = ("size:3x700", "@paths.txt", "rows.parquet", "--requests", "requests.jsonl")
    ended = cli("check", "--calibration", kept, "--json", *sources)
    *bad, summary = objects(ended.out)
    assert [one["origin"] for one in bad] == ["size:3x700", "size:700x3#line-3"]
    assert [summary[name] for name in ("checked", "no", "given")] == [7, 2, 7]
    assert "7 given by size: damage, codec and download size are not known" in ended.err


def test_json_is_one_object_per_offender_and_a_summary(cli, kept: Path, new: Path) -> None:
    ended = cli("check", "--calibration", kept, "--json", "--quiet", new)
    strip, summary = objects(ended.out)
    assert strip["origin"] == str(new / "strip.png")
    assert (strip["kind"], strip["answer"]) == ("item", "no")
    assert (strip["basis"], strip["exact"]) == ("refused", False)
    assert strip["shapes"] == [{"width_px": 3, "height_px": 700}]
    counts = {"checked": 2, "skipped": 1, "fits": 1, "no": 1, "unknown": 0, "given": 0}
    by = "Qwen2_5_VLProcessor of transformers"
    said = {"kind": "summary", "all_fit": False, "share": 0.5, "counted_by": by}
    assert summary == {**said, **counts}
    assert len(ended.err.splitlines()) == 2


@pytest.mark.parametrize(
    ("tolerate", "code", "last"),
    [
        ("0", 3, "error: 1 of 4 does not fit {kept}"),
        ("0.2", 3, "error: 1 of 4 does not fit {kept}: 25.0%, 20.0% tolerated"),
        ("0.25", 0, "3 of 4 fit, 1 does not: 25.0%, 25.0% tolerated"),
        ("1", 2, "error: --tolerate 1.0 is not a share between 0 and 1"),
        ("nan", 2, "error: --tolerate nan is not a share between 0 and 1"),
    ],
)
def test_a_share_that_does_not_fit_can_be_tolerated(cli, kept, new, tolerate, code, last) -> None:
    page, strip = (request((new / name).as_uri()) for name in ("page.png", "strip.png"))
    (new / "today.jsonl").write_text("\n".join([page, page, page, strip, ""]))
    args = ("check", "--calibration", kept, "--requests", new / "today.jsonl", "--json")
    ended = cli(*args, "--tolerate", tolerate)
    assert ended.code == code
    said = [line for line in ended.err.splitlines() if not line.startswith("  try:")]
    assert said[-1] == last.format(kept=kept)
    if code != 2:
        assert objects(ended.out)[-1]["share"] == 0.25


def test_paths_and_requests_come_from_standard_input(cli, kept, new: Path, monkeypatch) -> None:
    page, strip = (new / "page.png").as_uri(), data_url(png(3, 700))
    inline = request(page, data_url(png(64, 64)))
    asked = (inline, request(*[page] * 5), request("https://example.org/a.png"), "{broken")
    feed(
        monkeypatch,
        *(str(new / "page.png"), "", "missing.png", *asked),
        *(str(new / "strip.png"), strip, "data:image/png;base64,?"),
    )
    ended = cli("check", "--calibration", kept, "--stdin", "--json", "--quiet")
    assert ended.code == 3
    *offenders, summary = objects(ended.out)
    assert [(o["origin"], o["answer"]) for o in offenders] == [
        (str(new.parent / "missing.png"), "no"),
        *(("line 5", "no"), ("line 6", "unknown"), ("line 7", "no")),
        *((str(new / "strip.png"), "no"), ("line 9", "no"), ("line 10", "no")),
    ]
    remedy = "split into 2 prompts or calibrate again with --count image=5"
    assert offenders[1]["remedy"] == remedy
    assert offenders[2]["reason"] == "remote URL: its host is not in --allowed-media-domains"
    assert summary["checked"] == 9


def test_requests_files_of_one_name_are_told_apart(cli, kept: Path, new: Path) -> None:
    files = [new / folder / "requests.jsonl" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("{broken\n" + request((new / "page.png").as_uri()) + "\n")
    words = ("check", "--calibration", kept, "--allowed-local-media-path", new, "--json")
    ended = cli(*words, *(word for file in files for word in ("--requests", file)))
    origins = [line.get("origin") for line in objects(ended.out)]
    assert origins == [*(f"{file}:1" for file in files), None]


def test_requests_are_checked_whole(cli, kept: Path, new: Path) -> None:
    asked = new / "requests.jsonl"
    page = (new / "page.png").as_uri()
    asked.write_text(request(page) + "\n" + request(page, text="é" * 70_000) + "\n")
    ended = cli("check", "--calibration", kept, "--requests", asked)
    assert ended.code == 3
    assert "unknown requests.jsonl:2 (1000×750)" in ended.err
    assert "at most 140024 of text, max_model_len is 128000" in ended.err
    assert "→ shorten the text" in ended.err


def test_a_session_fails_at_a_turn(cli, kept: Path, new: Path) -> None:
    """Two chats by turns, each resending its history; a prompt may carry four images."""
    page = (new / "page.png").as_uri()
    answer = {"role": "assistant", "content": "A page."}

    def turn(name: str, number: int) -> str:
        asked = json.loads(request(page, text=name))["messages"]
        return json.dumps({"messages": [*[*asked, answer] * (number - 1), *asked]})

    lines = [turn(name, number) for number in range(1, 7) for name in "ab"]
    # Some agents attach several at once, and another user asks the same first.
    lines[4:4] = [turn("a", 1), request(*[page] * 5)]
    asked = new / "requests.jsonl"
    asked.write_text("\n".join(lines))
    ended = cli("check", "--calibration", kept, "--requests", asked, "--json")
    reason = "5 image items, limit_mm_per_prompt admits 4"
    assert [line for line in ended.err.splitlines() if line.startswith("session")] == [
        f"session requests.jsonl:1 fails at turn 5 (requests.jsonl:11): {reason}",
        f"session requests.jsonl:2 fails at turn 5 (requests.jsonl:12): {reason}",
    ]
    *offenders, _ = objects(ended.out)
    assert [(one["origin"], one["session"], one["turn"]) for one in offenders] == [
        (f"requests.jsonl:{line}", f"requests.jsonl:{first}", number)
        for line, first, number in ((6, 6, 1), (11, 1, 5), (12, 2, 5), (13, 1, 6), (14, 2, 6))
    ]


@pytest.mark.parametrize("absolute", [True, False])
def test_a_path_in_a_message_is_read_but_not_as_sent(cli, kept, new, absolute, monkeypatch) -> None:
    """vLLM answers 400 to a path; a row of a data set is never sent so."""
    name = str(new / "page.png") if absolute else "page.png"
    row = json.dumps({"prompt": "What is this?", "image_files": [name]})
    (new / "today.jsonl").write_text(f"{request(name)}\n{row}\n")
    ended = cli("check", "--calibration", kept, "--requests", new / "today.jsonl")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.count("1 request with paths, such as today.jsonl:1: the server takes") == 1
    monkeypatch.chdir(new)
    feed(monkeypatch, request(name), row)
    *offenders, summary = objects(cli("check", "--calibration", kept, "--stdin", "--json").out)
    assert [(one["origin"], one["answer"]) for one in offenders] == [("line 1", "no")]
    assert "vLLM accepts no paths, only URLs: file:///" in str(offenders[0]["reason"])
    assert summary["fits"] == 1


def test_unknown_is_a_no_unless_it_is_allowed(cli, tmp_path: Path, new: Path, kept: Path) -> None:
    changed(calibration(), "costs.modalities.image", rule=None).save(kept)
    page = new / "page.png"
    ended = cli("check", "--calibration", kept, page)
    assert ended.code == 3
    assert "no rule limits its cost" in ended.err
    assert "→ calibrate again with such media in the corpus" in ended.err
    assert cli("check", "--calibration", kept, "--allow-unknown", page).code == 0


def peak_bytes(*words: object) -> int:
    """Return the peak of a process of its own."""
    child = subprocess.Popen([sys.executable, "-m", "mmcalib", *map(str, words)], stderr=-3)
    usage = os.wait4(child.pid, 0)[2]
    child.returncode = 0
    return usage.ru_maxrss << 10


def test_a_rate_whose_kernel_takes_gigabytes_is_refused_in_little_memory(cli, kept, new) -> None:
    """0.1 s of it took all the memory of the server's machine."""
    document = json.loads(kept.read_text())
    rungs = [{"samples": n, "tokens": 9, "embeds": 9} for n in (160, 48_000)]
    sound = {"rule": {"rate_hz": 16_000, "rungs": rungs}, "known": [], "refused": []}
    document["costs"]["modalities"]["audio"] = sound
    document["engine_config"]["limit_mm_per_prompt"]["audio"] = 1
    kept.write_text(json.dumps(document))
    odd = silence(new / "odd.wav", 0.1, 21_739)
    ended = cli("check", "--calibration", kept, "--json", odd)
    refused = objects(ended.out)[0]
    assert (ended.code, refused["answer"], refused["remedy"]) == (3, "no", "resample to 16 kHz")
    words = ("check", "--calibration", kept)
    assert peak_bytes(*words, odd) - peak_bytes(*words, new / "page.png") < 50 << 20


@pytest.mark.parametrize("words", [("report",), ("check", ".", "--calibration"), ("diff", "out")])
def test_a_calibration_of_an_older_version_is_one_line(cli, kept: Path, words: list[str]) -> None:
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "schema_version": 1}))
    ended = cli(*(kept if word == "out" else word for word in words), kept)
    said = f"{kept} was written by an older mmcalib: its schema_version is 1, and this one"
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines() == [f"error: {said} reads 3", "  try: mmcalib run again"]


def test_what_cannot_be_read_has_a_remedy_too(cli, kept: Path, new: Path, monkeypatch) -> None:
    (new / "empty.png").touch()
    (new / "gone.png").symlink_to("nowhere.png")
    Image.new("1", (20_000, 9_000)).save(new / "huge.png")
    names = ("empty.png", "gone.png", "huge.png", "missing.png")
    feed(monkeypatch, *(f"new/{name}" for name in names), "{broken", request("new/missing.png"))
    monkeypatch.chdir(new.parent)
    ended = cli("check", "--calibration", kept, "--json", "-")
    *offenders, _ = objects(ended.out)
    assert [str(o["remedy"]) for o in offenders] == [
        *["leave it out, or use another copy"] * 2,
        "make it smaller, or leave it out",
        "leave it out, or use another copy",
        *["correct the request, or leave it out"] * 2,
    ]
    assert "try: apply the remedies above, or mmcalib run" in ended.err


def test_limits_of_a_request_name_the_variable_that_admits_it(cli, kept: Path, new: Path) -> None:
    """Two downloads of 1.5 MiB, then a body, against 2 MiB and a byte too few."""
    downloads = "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB"
    body = "VLLM_HTTP_MAX_REQUEST_BODY_SIZE"
    page = (new / "page.png").read_bytes().ljust(3 << 19, b"\0")
    typed = request((new / "page.png").as_uri(), text="a" * 400)
    with serving() as server:
        fetched = request(*(server.put(name, page) for name in ("a.png", "b.png")))
        (new / "requests.jsonl").write_text(f"{fetched}\n{typed}\n")
        args = ("--requests", new / "requests.jsonl", "--allowed-media-domains", "127.0.0.1")
        for limits, remedies in (
            ({downloads: 4, body: len(typed)}, []),
            ({downloads: 2, body: len(typed) - 1}, [f"{downloads}=4", f"{body}={len(typed)}"]),
        ):
            calibration = json.loads(kept.read_text())
            calibration["server"]["limits"] |= limits
            kept.write_text(json.dumps(calibration))
            *offenders, _ = objects(cli("check", "--calibration", kept, "--json", *args).out)
            assert [str(o["remedy"]).partition(" for")[0] for o in offenders] == remedies


def test_a_text_that_no_run_bounds_is_not_calibrated_for_again(cli, kept: Path, new: Path) -> None:
    (new / "requests.jsonl").write_text(request((new / "page.png").as_uri()) + "\n")
    text = replace(calibration().costs.text, compared=0)
    changed(calibration(), "costs", text=text).save(kept)
    ended = cli("check", "--calibration", kept, "--requests", new / "requests.jsonl")
    assert "→ this model's text has no known limit" in ended.err


def test_the_library_takes_paths_and_shapes(kept: Path, new: Path) -> None:
    loaded = Calibration.load(kept)
    assert loaded == calibration()
    assert loaded.admits(new / "page.png") == loaded.admits(ImageShape(1000, 750))
    assert loaded.admits(str(new / "page.png")).fits
    assert loaded.admits(new / "strip.png").answer == "no"
    assert loaded.admits(new / "notes.txt").reason.startswith("not an image")
    assert loaded.admits(ImageShape(1316, 756)).exact


def test_answers_come_before_the_next_line_and_inline_media_go(new, tmp_path, monkeypatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    read: list[str] = []
    inline = data_url(png(64, 64))

    def lines() -> Iterator[bytes]:
        for line in (str(new / "page.png"), request(inline), request(inline)):
            read.append(line)
            yield line.encode()

    answers = check(calibration(), lines=lines())
    for number in (1, 2, 3):
        answer = next(answers)
        assert isinstance(answer, CheckedItem)
        assert answer.admission.fits
        assert len(read) == number
        assert not list((tmp_path / "temporary").glob("mmcalib-*/*.png"))


def test_check_takes_the_sources_of_scan(cli, kept, new: Path, tmp_path: Path, monkeypatch) -> None:
    """A pattern, an archive and a URL were no such folder."""
    monkeypatch.chdir(tmp_path)
    tar(tmp_path / "a.tar", ("page.png", png(64, 64)), ("strip.png", png(3, 700)))
    (tmp_path / "paths.txt").write_text("new/page.png\n")
    for source, fit in (("new/*.png", "1 of 2"), ("a.tar", "1 of 2"), ("@paths.txt", "1 of 1")):
        assert f"{fit} fit" in cli("check", "--calibration", kept, source).err, source
    with serving() as server:
        url = server.put("page.png", png(64, 64))
        assert cli("check", "--calibration", kept, url).code == 2
        feed(monkeypatch, url, request(url))
        words = ("check", "--calibration", kept, "-")
        assert "2 unknown" in cli(*words).err
        feed(monkeypatch, url, request(url))
        assert "2 of 2 fit" in cli(*words, "--allowed-media-domains", "127.0.0.1").err


def test_a_name_that_says_medium_must_be_one(cli, kept: Path, new: Path) -> None:
    """A text called fake.png was passed over, a JPEG without its end fitted."""
    (new / "strip.png").unlink()
    (new / "fake.png").write_text("words")
    whole = io.BytesIO()
    Image.new("RGB", (640, 480), "green").save(whole, "JPEG")
    (new / "cut.jpg").write_bytes(whole.getvalue()[:-200])
    ended = cli("check", "--calibration", kept, new)
    assert ended.code == 3
    assert f"rejected {new / 'fake.png'}: not an image, video or audio file (text)" in ended.err
    assert f"rejected {new / 'cut.jpg'}: damaged: image file is truncated" in ended.err
    assert "1 of 3 fit, 2 do not, 1 not media" in ended.err
    named = cli("check", "--calibration", kept, new / "notes.txt")
    assert named.code == 3
    assert "not an image, video or audio file" in named.err


def test_a_link_to_a_folder_that_was_read_is_no_misfit(cli, kept: Path, new: Path) -> None:
    (new / "strip.png").unlink()
    (new / "latest").symlink_to(".")
    ended = cli("check", "--calibration", kept, new, "--json")
    assert ended.code == 0
    assert "1 of 1 fit, 2 not media" in ended.err
    (summary,) = objects(ended.out)
    assert (summary["checked"], summary["skipped"]) == (1, 2)
