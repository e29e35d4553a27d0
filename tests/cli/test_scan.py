"""`mmcalib scan` and `mmcalib merge` on real files: no engine, only headers."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import soundfile
from PIL import Image

from mmcalib.progress import Silent
from mmcalib.result.census_reading import read_census
from mmcalib.workflows.read import read
from tests.media.hostile import noise_image, video

ROOT = Path(__file__).resolve().parent.parent.parent
INLINE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQ"
    "AAAABJRU5ErkJggg=="
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Pictures, a sound, a text, links, a name that is not UTF-8, and requests over them."""
    folder = tmp_path / "corpus"
    (folder / "more").mkdir(parents=True)
    for number in range(12):
        Image.new("RGB", (10 + number % 4, 8)).save(folder / f"{number}.png")
        Image.new("RGB", (20, 8)).save(folder / "more" / f"{number}.jpg")
    soundfile.write(folder / "s.wav", [0.0] * 80, 8000)
    (folder / "notes.txt").write_text("words")
    (folder / "empty.png").touch()
    shutil.copy(os.fsencode(folder / "1.png"), os.path.join(os.fsencode(folder), b"\xe9.png"))
    (folder / "link.png").symlink_to("3.png")
    os.link(folder / "more" / "1.jpg", folder / "hard.jpg")
    lines = [
        *(request(f"{n}.png", f"more/{n}.jpg") for n in range(8)),
        *(request("3.png"), request("empty.png", "4.png", "11.png"), request("none.png")),
        *(request(INLINE), request(INLINE, text="again"), "{broken", "", request(text="words")),
    ]
    (folder / "requests.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def request(*urls: str, text: str = "What is this?") -> str:
    parts: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
    content = [*parts, {"type": "text", "text": text}]
    return json.dumps({"messages": [{"role": "user", "content": content}]})


def written(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def everything(corpus: Path) -> list[object]:
    return ["--data", corpus, "--data", corpus / "more", "--requests", corpus / "requests.jsonl"]


def test_a_folder_is_counted(cli, corpus: Path) -> None:
    ended = cli("scan", "--data", corpus / "more", "--data", corpus / "notes.txt", "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found == {
        "shards": [],
        "corpus": {
            "items": 12,
            "prompts": 0,
            "files": 13,
            "distinct": None,
            "skipped": 1,
            "modalities": {"image": {"items": 12, "unique_shapes": 1}},
        },
    }
    document = json.loads(Path("out/census.json").read_text())
    assert document["corpus"] == found["corpus"]
    assert document["shapes"] == [
        {
            "modality": "image",
            "shape": {"width_px": 20, "height_px": 8},
            "count": 12,
            "exemplars": [str(corpus / "more" / f"{n}.jpg") for n in (0, 1, 10)],
        }
    ]
    assert json.loads(Path("out/skipped.jsonl").read_text()) == {
        "path": str(corpus / "notes.txt"),
        "reason": "not an image, video or audio file (text)",
    }


def test_the_summary_is_one_screen(cli, corpus: Path) -> None:
    ended = cli("scan", *everything(corpus), "--out", "o")
    assert ended.code == 0
    assert ended.out == ""
    lines = [line.rstrip() for line in ended.err.splitlines()]
    assert len(lines) < 24
    assert "28 items in 12 requests, 32 files" in lines
    assert "image     27       6  20×8 (12 times)  20×8" in lines
    assert "  1 × empty file" in lines
    assert "  1 × its name is not valid UTF-8" in lines
    assert "written to o: census.json, skipped.jsonl" in lines
    assert lines[-1] == "calibrate with: mmcalib run --model MODEL --data DIR"


@pytest.mark.parametrize("of", [1, 2, 5])
def test_merged_shards_are_the_whole_byte_for_byte(cli, corpus: Path, of: int) -> None:
    assert cli("scan", *everything(corpus), "--out", "whole", "--quiet").code == 0
    parts = []
    for index in range(of, 0, -1):
        ended = cli("scan", *everything(corpus), "--shard", f"{index}/{of}", "--out", f"p{index}")
        assert ended.code == 0, ended.err
        parts.append(Path(f"p{index}") / ("census.json" if index % 2 else ""))
    ended = cli("merge", *parts, "--out", "merged", "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["corpus"]["items"] == 28
    assert written(Path("merged")) == written(Path("whole"))


def test_a_run_would_count_the_same(cli, corpus: Path, tmp_path: Path) -> None:
    asked = corpus / "requests.jsonl"
    cli("scan", *everything(corpus), "--quiet")
    scanned = read_census(Path("out/census.json"))
    found = read(
        [corpus, corpus / "more"],
        [asked],
        allowed_root=None,
        cache=tmp_path / "cache",
        progress=Silent(),
    )
    assert list(scanned.census.encoded()) == list(found.census.encoded())
    assert scanned.requests == found.prompts
    assert scanned.corpus.skipped == len(found.skipped)


def test_the_order_of_sources_and_of_names_does_not_matter(cli, corpus: Path) -> None:
    cli("scan", "--data", corpus, "--data", corpus / "more", "--out", "one")
    cli("scan", "--data", corpus / "more", "--data", corpus, "--out", "two")
    assert written(Path("one")) == written(Path("two"))


def test_shards_agree_on_machines_that_mount_elsewhere(cli, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "mnt" / "elsewhere", symlinks=True)
    for index, folder in ((1, corpus), (2, tmp_path / "mnt" / "elsewhere")):
        cli("scan", "--data", folder, "--shard", f"{index}/2", "--out", f"p{index}")
    cli("merge", "p1", "p2", "--out", "merged")
    cli("scan", "--data", corpus, "--out", "whole")
    merged, whole = (json.loads(Path(o, "census.json").read_text()) for o in ("merged", "whole"))
    assert merged["corpus"] == whole["corpus"]
    assert merged["shards"] == []


def test_a_shard_says_so_and_so_does_a_part_of_the_merge(cli, corpus: Path) -> None:
    for index in (1, 2):
        ended = cli("scan", "--data", corpus, "--shard", f"{index}/3", "--out", f"p{index}")
        assert f", shard {index}/3" in ended.err
        assert f"when all shards are there: mmcalib merge p{index}/census.json ..." in ended.err
    ended = cli("merge", "p1", "p2", "--out", "some")
    assert ended.code == 0
    assert "not all of the corpus: without shard 3/3" in ended.err
    ended = cli("merge", "p1", "p2", "p1", "--out", "twice")
    assert ended.code == 2
    assert "shard 1/3 is there twice" in ended.err
    assert not Path("twice").exists()


def test_a_shard_may_be_empty(cli, media: Path) -> None:
    counts = []
    for index in (1, 2):
        ended = cli("scan", "--data", media, "--shard", f"{index}/2", "--out", str(index), "--json")
        assert ended.code == 0
        counts.append(json.loads(ended.out)["corpus"]["items"])
    assert sorted(counts) == [0, 1]


def test_strict_is_a_no_where_something_was_skipped(cli, corpus: Path, media: Path) -> None:
    ended = cli("scan", "--data", corpus, "--strict", "--quiet")
    assert (ended.code, ended.out) == (3, "")
    assert "--strict: 4 files or requests were skipped" in ended.err
    assert Path("out/census.json").exists()
    assert cli("merge", "out", "--out", "m", "--strict", "--quiet").code == 3
    assert cli("scan", "--data", media, "--out", "o", "--strict").code == 0


def test_paths_come_from_standard_input(cli, corpus: Path, monkeypatch) -> None:
    files = [path for path in corpus.rglob("*") if path.is_file() and path.suffix != ".jsonl"]
    text = b"".join(os.fsencode(os.path.relpath(path)) + b"\n" for path in files)
    cli("scan", "--data", corpus, "--requests", corpus / "requests.jsonl", "--out", "folder")
    words = ["scan", "--data", "-", "--requests", corpus / "requests.jsonl", "--quiet"]
    parts = [("listed", []), ("p1", ["--shard", "1/2"]), ("p2", ["--shard", "2/2"])]
    for out, more in parts:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text + b"missing\0.png\n")))
        assert cli(*words, *more, "--out", out).code == 0
    assert cli("merge", "p1", "p2", "--out", "merged").code == 0
    assert written(Path("listed")) == written(Path("merged"))
    listed, folder = (json.loads(Path(o, "census.json").read_text()) for o in ("listed", "folder"))
    assert (listed["shapes"], listed["prompts"]) == (folder["shapes"], folder["prompts"])
    assert listed["corpus"]["skipped"] == folder["corpus"]["skipped"] + 1


def test_results_are_not_overwritten_unasked(cli, media: Path) -> None:
    assert cli("scan", "--data", media).code == 0
    before = written(Path("out"))
    ended = cli("scan", "--data", media)
    assert ended.code == 2
    assert "--out out is not empty" in ended.err
    assert cli("merge", "out").code == 2
    assert cli("merge", "out", "--force", "--quiet").code == 0
    assert cli("scan", "--data", media, "--force", "--quiet").code == 0
    assert written(Path("out")) == before


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["scan"], 2, "nothing to scan"),
        (["scan", "--data", "nowhere"], 1, "no such folder"),
        (["scan", "--requests", "none.jsonl"], 1, "no such requests file"),
        (["scan", "--data", ".", "--shard", "2"], 2, "not a shard: 2"),
        (["scan", "--data", ".", "--shard", "3/2"], 2, "no such shard: 3/2"),
        (["merge", "none.json"], 2, "cannot read none.json"),
        (["merge", "media"], 2, "cannot read media/census.json"),
    ],
)
def test_a_mistake_is_one_line(cli, media: Path, words: list[str], code: int, says: str) -> None:
    ended = cli(*words)
    assert (ended.code, ended.out) == (code, "")
    assert says in ended.err
    assert not Path("out").exists()


def test_nothing_but_texts_is_an_error(cli, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("words")
    ended = cli("scan", "--data", tmp_path / "texts")
    assert ended.code == 1
    assert "nothing to measure" in ended.err


def test_a_list_of_another_scan_is_noticed(cli, corpus: Path) -> None:
    cli("scan", "--data", corpus, "--quiet")
    Path("out/skipped.jsonl").write_text("")
    ended = cli("merge", "out", "--out", "m")
    assert ended.code == 2
    assert "out/skipped.jsonl lists 0, out/census.json counts 4 skipped" in ended.err


def test_a_request_outside_its_root_ends_the_scan(cli, corpus: Path) -> None:
    asked = corpus / "more" / "requests.jsonl"
    asked.write_text(request("../1.png") + "\n")
    ended = cli("scan", "--requests", asked)
    assert ended.code == 2
    assert "--allowed-local-media-path" in ended.err
    ended = cli("scan", "--requests", asked, "--allowed-local-media-path", corpus, "--json")
    assert json.loads(ended.out)["corpus"]["items"] == 1


def test_who_counts_imports_neither_vllm_nor_what_reads_media(corpus: Path, tmp_path: Path) -> None:
    words = ["mmcalib", "scan", "--data", str(corpus), "--out", str(tmp_path / "fresh")]
    heavy = ("torch", "vllm", "transformers", "av", "PIL", "soundfile")
    code = (
        f"import sys; from mmcalib.cli import main\nsys.argv = {words}\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print([n for n in {heavy} if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    assert (tmp_path / "fresh" / "census.json").exists()


def test_repeats_are_counted_by_content(cli, tmp_path: Path) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    for name, width in (("a", 9), ("b", 9), ("c", 8)):
        Image.new("L", (width, 8)).save(folder / f"{name}.png")
    os.link(folder / "a.png", folder / "link.png")
    with tarfile.open(folder / "x.tar", "w") as tar:
        tar.add(folder / "c.png", "d.png")
    cli("scan", "--data", str(folder), "--repeats")
    found = read_census(Path("out/census.json")).corpus
    assert (found.items, found.distinct) == (5, 2)
    cli("scan", "--data", str(folder), "--force", "--quiet")
    assert read_census(Path("out/census.json")).corpus.distinct is None


BROKEN_PYAV = """
import av

def refuse(*args, **options):
    raise av.error.InvalidDataError(1094995529, "Invalid data found when processing input")

av.open = refuse
"""


def test_clips_that_all_fail_alike_are_the_installations_fault(tmp_path: Path) -> None:
    """A PyAV that reads nothing, in every process; a picture is there to be counted."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(BROKEN_PYAV)
    media = tmp_path / "media"
    media.mkdir()
    for number in range(3):
        video(media / f"{number}.mp4", (64, 48))
    noise_image(media / "a.png")
    command = [sys.executable, "-m", "mmcalib", "scan", "--data", str(media), "--out"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "broken"), str(ROOT)])}
    done = subprocess.run(
        [*command, str(tmp_path / "out")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "no video can be read here: all 3 files fail" in done.stderr
    assert "mmcalib doctor" in done.stderr
    env["PYTHONPATH"] = str(ROOT)
    for number in range(3):
        (media / f"{number}.mp4").write_bytes(b"\0\0\0\x18ftypisom")
    done = subprocess.run(
        [*command, str(tmp_path / "other")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, "damaged files alone are the corpus' own"
