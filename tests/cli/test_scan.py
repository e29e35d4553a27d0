"""`mmcalib scan` on real files: no engine, only headers."""

import io
import json
import os
import shlex
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
import soundfile
from PIL import Image

from tests.conftest import ROOT
from tests.corpus.media import data_url, png, request
from tests.media.hostile import noise_image
from tests.odd_media import clips
from tests.programs import run_python
from tests.schemas import CALIBRATION, fits

INLINE = data_url(png(1, 1))


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


def everything(corpus: Path) -> list[object]:
    return ["--data", corpus, "--data", corpus / "more", "--requests", corpus / "requests.jsonl"]


def test_a_folder_is_counted(cli, corpus: Path) -> None:
    ended = cli("scan", "--data", corpus / "more", "--data", corpus / "notes.txt", "--json")
    assert ended.code == 0
    fits("scan", ended.out)
    reason = "not an image, video or audio file (text)"
    counts = {"items": 12, "prompts": 0, "files": 13, "distinct": None, "given": 0, "skipped": 1}
    images = {"image": {"items": 12, "unique_shapes": 1}}
    assert json.loads(ended.out) == {
        "corpus": {**counts, "modalities": images},
        "skipped": [{"path": str(corpus / "notes.txt"), "reason": reason}],
    }


def test_a_saved_corpus_is_scanned_as_its_media_were(cli, corpus: Path, tmp_path: Path) -> None:
    saved, again = tmp_path / "saved.jsonl", tmp_path / "again.jsonl"
    bundled = ("--model", "Qwen/Qwen2.5-VL-3B-Instruct")
    ended = cli("scan", *everything(corpus), "--save", saved, *bundled, "--json")
    before, said = json.loads(ended.out)["corpus"], " ".join(ended.err.split())
    assert "words and times of 12 requests: text is bounded by bytes; --model" in said
    assert "not in saved.jsonl: content of audio: a processor may drop" in said
    after = json.loads(cli("scan", "--requests", saved, "--save", again, "--json").out)["corpus"]
    names = ("items", "prompts", "modalities")
    assert [after[name] for name in names] == [before[name] for name in names]
    assert after["given"] == after["items"]
    assert again.read_text() == saved.read_text()


def test_the_summary_is_one_screen(cli, corpus: Path) -> None:
    ended = cli("scan", *everything(corpus))
    assert ended.code == 0
    assert ended.out == ""
    lines = [line.rstrip() for line in ended.err.splitlines()]
    assert len(lines) < 24
    assert "28 items in 12 requests, 32 files" in lines
    assert "image     27       6  20×8 (12 times)  20×8" in lines
    assert "  1 × empty file" in lines
    assert "  1 × name is not valid UTF-8" in lines
    given = shlex.join(map(str, everything(corpus)))
    assert lines[-1] == f"Next: mmcalib run --model MODEL {given}"


def test_the_order_of_sources_and_of_names_does_not_matter(cli, corpus: Path) -> None:
    one = cli("scan", "--data", corpus, "--data", corpus / "more", "--json")
    assert one.out == cli("scan", "--data", corpus / "more", "--data", corpus, "--json").out != ""


def test_strict_is_a_no_where_something_was_skipped(cli, corpus: Path, media: Path) -> None:
    ended = cli("scan", "--data", corpus, "--strict", "--quiet")
    assert (ended.code, ended.out) == (3, "")
    assert "--strict: 4 files or requests were skipped" in ended.err
    assert cli("scan", "--data", media, "--strict").code == 0


def test_paths_come_from_standard_input(cli, corpus: Path, monkeypatch) -> None:
    files = [path for path in corpus.rglob("*") if path.is_file() and path.suffix != ".jsonl"]
    text = b"".join(os.fsencode(os.path.relpath(path)) + b"\n" for path in files)
    words = ["scan", "--requests", corpus / "requests.jsonl", "--quiet", "--json"]
    folder = json.loads(cli(*words, "--data", corpus).out)["corpus"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text + b"missing\0.png\n")))
    listed = json.loads(cli(*words, "--data", "-").out)["corpus"]
    assert listed == {**folder, "files": listed["files"], "skipped": folder["skipped"] + 1}


@pytest.mark.parametrize(
    ("words", "heavy", "says"),
    [
        (("scan", "--data"), ("av", "PIL", "soundfile"), "items"),
        (("check", "--calibration", str(CALIBRATION)), (), "fit"),
    ],
    ids=["scan", "check"],
)
def test_who_counts_imports_neither_vllm_nor_what_reads_media(words, heavy, says, corpus) -> None:
    """Whether a file fits needs what reads media, but neither vLLM nor torch."""
    typed = ["mmcalib", *words, str(corpus)]
    code = (
        f"import sys; from mmcalib.cli import main\nsys.argv = {typed}\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print([n for n in {('torch', 'vllm', 'transformers', *heavy)} if n in sys.modules])"
    )
    done = run_python("-c", code, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"
    assert says in done.stderr


def test_repeats_are_counted_by_content(cli, tmp_path: Path) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    for name, width in (("a", 9), ("b", 9), ("c", 8)):
        Image.new("L", (width, 8)).save(folder / f"{name}.png")
    os.link(folder / "a.png", folder / "link.png")
    with tarfile.open(folder / "x.tar", "w") as tar:
        tar.add(folder / "c.png", "d.png")
    found = json.loads(cli("scan", "--data", folder, "--repeats", "--json").out)["corpus"]
    assert (found["items"], found["distinct"]) == (5, 2)


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
        clips(media / f"{number}.mp4", (64, 48))
    noise_image(media / "a.png")
    command = ("-m", "mmcalib", "scan", "--data", media)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "broken"), str(ROOT)])}
    done = run_python(*command, env=env)
    assert done.returncode == 1, done.stderr
    assert "cannot read video: all 3 files fail" in done.stderr
    assert "mmcalib doctor" in done.stderr
    env["PYTHONPATH"] = str(ROOT)
    for number in range(3):
        (media / f"{number}.mp4").write_bytes(b"\0\0\0\x18ftypisom")
    assert run_python(*command, env=env).returncode == 0, "damaged files alone are the corpus' own"
