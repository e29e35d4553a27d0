"""Sources of media: none changes what is derived, nor do hostile files beside them."""

import os
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.builders import some
from tests.e2e.command import QWEN, Ran, run
from tests.e2e.media import clip, photo, requests
from tests.media import test_hostile as hostile

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# Beyond what vLLM's line takes, and in one piece.
LONG_LINE_BYTES = 100 << 20
BAD_LINES = (
    bytes(1000),
    b'{"messages": 3}',
    b"[1]",
    b"[" * 100_000,
    b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
    b'{"messages": [{"role": "user", "content": "' + b"x" * LONG_LINE_BYTES + b'"}]}',
)


def settings(ran: Ran) -> str:
    """Return `engine.yaml`, byte for byte but for comments."""
    lines = (ran.out / "engine.yaml").read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


def good(folder: Path) -> Path:
    photo(folder / "0.jpg", 640, 480, 0)
    photo(folder / "1.jpg", 1280, 720, 1)
    clip(folder / "clip.mp4", 320, 240, 40)
    return folder


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, engine_cache: Path) -> Ran:
    """Two photos and a question, a video and a question, in a tar archive; proven by replay."""
    folder = tmp_path_factory.mktemp("shard")
    media = good(folder / "media")
    (media / "ask").write_text("Describe.")
    with tarfile.open(folder / "0.tar", "w") as archive:
        for name, member in (("0.jpg", "a.0.jpg"), ("1.jpg", "a.1.jpg"), ("ask", "a.txt")):
            archive.add(media / name, member)
        for name, member in (("clip.mp4", "b.mp4"), ("ask", "b.txt")):
            archive.add(media / name, member)
    words = ("--data", folder / "0.tar", "--validate", "replay", "--quiet")
    return run(engine_cache, folder / "out", "--model", QWEN, *words)


@pytest.fixture(scope="module")
def beset(tmp_path_factory: pytest.TempPathFactory, engine_cache: Path) -> Ran:
    """The same as files, with requests, among all that means harm."""
    folder = tmp_path_factory.mktemp("beset")
    media = good(folder / "media")
    (media / "bad").mkdir()
    for name, write in hostile.ODD.items():
        write(media / "bad" / name)
    os.mkfifo(media / "bad/fifo.png")
    (media / "bad/zero.png").symlink_to("/dev/zero")
    (media / "bad/loop").symlink_to(media)
    asked = requests(
        media / "requests.jsonl",
        [("image", "0.jpg"), ("image", "1.jpg")],
        [("video", "clip.mp4")],
        *([("image", f"bad/{name}")] for name in ("fifo.png", "words.png", "none.png")),
        [("image", "1.jpg")] * 3 + [("image", "bad/empty.png")],
        [("image", "http://127.0.0.1:9/a.png")],
    )
    asked.write_bytes(b"\n".join((*BAD_LINES, asked.read_bytes())))
    words = ("--data", media, "--requests", asked, "--item-timeout", "10", "--quiet")
    return run(engine_cache, folder / "out", "--model", QWEN, "--validate", "none", *words)


def test_members_of_an_archive_give_limits_as_files_do(shard: Ran) -> None:
    config = yaml.safe_load(settings(shard))
    assert config["limit-mm-per-prompt"] == {"image": 2, "video": 1}
    size = config["mm-processor-kwargs"]["images_kwargs"]["size"]
    # 1280×720 becomes 46×26 patches of 28×28 pixels.
    assert size["longest_edge"] == 46 * 26 * 28 * 28
    assert shard.calibration.corpus.modalities["video"].tokens["max"] == 4 * 11 * 9


def test_members_are_replayed(shard: Ran) -> None:
    replay = some(some(shard.calibration.startup).replay)
    assert replay.prompts >= 2
    assert (replay.rejected, replay.oom, replay.token_mismatches) == (0, 0, 0)


def test_harm_beside_good_files_changes_no_setting(beset: Ran, shard: Ran) -> None:
    assert settings(beset) == settings(shard)
    assert beset.stderr == shard.stderr == ""


def test_harm_is_listed_and_accounted_for(beset: Ran) -> None:
    assert hostile.SKIPPED.keys() <= beset.skipped.keys()
    assert {"fifo.png", "zero.png", "loop", "none.png"} <= beset.skipped.keys()
    lines = {origin for origin in beset.skipped if origin.startswith("requests.jsonl:")}
    usable = (len(BAD_LINES) + 1, len(BAD_LINES) + 2)
    assert lines == {f"requests.jsonl:{n}" for n in range(1, len(BAD_LINES) + 8) if n not in usable}
    assert beset.calibration.corpus.prompts == 2
