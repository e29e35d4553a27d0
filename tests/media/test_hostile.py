"""Hostile files beside good ones: measured, or skipped with a reason, in bounded memory."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmcalib.domain.items import Item
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from tests.census.looking import looked
from tests.media import hostile as make
from tests.odd_media import clips
from tests.programs import run_python

GIB = 1 << 30
SMALL, CLIP = ImageShape(40, 24), VideoShape(20, 10.0, 2.0, 64, 48)
GOOD: dict[str, make.Make] = {
    "good.png": make.noise_image,
    "good.mp4": lambda path: clips(path, (64, 48)),
    "good.wav": make.tone,
}
NOT_MEDIA = "not an image, video or audio file"

MEASURED: dict[str, tuple[make.Make, Shape]] = {
    "1x1.png": (make.image("RGB", 1, 1), ImageShape(1, 1)),
    "1x100000.png": (make.image("RGB", 1, 100_000), ImageShape(1, 100_000)),
    "cmyk.jpg": (make.image("CMYK"), SMALL),
    "16-bit.png": (make.image("I;16"), SMALL),
    "500-frames.gif": (lambda path: make.frames_of(path, 500), SMALL),
    "pages.tif": (make.pages_of_different_size, SMALL),
    "png-named.mp4": (make.renamed(make.noise_image, "png"), ImageShape(400, 240)),
    "mp4-named.jpg": (make.renamed(GOOD["good.mp4"], "mp4"), CLIP),
    "wav-named.txt": (make.renamed(make.tone, "wav"), AudioShape(48000, 16000)),
    "two-streams.mp4": (lambda path: clips(path, (64, 48), (128, 96)), CLIP),
    "changing.ts": (make.video_of_changing_size, CLIP),
    "nan.mkv": (make.video_of_duration(float("nan")), CLIP),
    "30-years.mkv": (make.video_of_duration(1e9), CLIP),
    "sound-30-years.mka": (make.sound_of_duration(1e9), AudioShape(16000, 16000)),
    "10-hours.wav": (make.silence(samples=make.TEN_HOURS), AudioShape(make.TEN_HOURS, 16000)),
    "claims-10-hours.wav": (make.silence(claimed=2 * make.TEN_HOURS), AudioShape(16000, 16000)),
    "24-days.au": (make.bytes_of(make.AU, 64 * GIB), AudioShape(34359738354, 16000)),
    "1-hz.wav": (make.silence(rate_hz=1), AudioShape(16000, 1)),
    "1024-channels.wav": (make.silence(channels=1024, samples=8000), AudioShape(8000, 16000)),
    "tail-cut.wav": (make.cut(make.tone, 0, 0.5), AudioShape(23989, 16000)),
}

SKIPPED: dict[str, tuple[make.Make, str]] = {
    "empty.png": (make.bytes_of(b""), "empty file"),
    "words.png": (make.bytes_of(b"words\n" * 99), f"{NOT_MEDIA} (text)"),
    "zeros.png": (make.bytes_of(b"", 64 * GIB), NOT_MEDIA),
    "bomb.png": (lambda path: make.png_of_zeros(path, 50_000, 50_000), "image exceeds"),
    "bomb.ppm": (make.bytes_of(b"P6\n50000 50000\n255\n"), "image exceeds"),
    "head-cut.png": (make.cut(make.noise_image, 0.1, 1), NOT_MEDIA),
    "head-cut.mp4": (make.cut(GOOD["good.mp4"], 0.1, 1), NOT_MEDIA),
    "tail-cut.png": (make.cut(make.noise_image, 0, 0.6), "damaged: image file is truncated"),
    "tail-cut.jpg": (make.cut(make.noise_image, 0, 0.6), "damaged: image file is truncated"),
    "tail-cut.ogg": (make.cut(make.tone, 0, 0.6), "damaged: ends too early"),
    "no-index.mp4": (make.video_without_index, "damaged: FFmpeg cannot read it"),
    "no-frames.mp4": (lambda path: clips(path, (64, 48), frames=0), "file contains no video"),
    "no-samples.wav": (make.silence(samples=0), "audio without samples"),
    "0-hz.wav": (make.silence(rate_hz=0), "damaged: "),
    "-1-hz.wav": (make.silence(rate_hz=2**32 - 1), "damaged: "),
    "30000-channels.wav": (make.silence(channels=30_000, samples=10), "damaged: "),
    # Files of which Pillow reads every byte, one by one or all at once.
    "zeros.jpg": (
        make.bytes_of(b"\xff\xd8\xff\xe0", 4 * GIB),
        "image header takes too long to read",
    ),
    "zeros.tif": (make.bytes_of(b"II*\0\x08\0\0\0", 4 * GIB), "image header is damaged"),
    "zeros.mp4": (make.bytes_of(b"\0\0\0\x18ftypisom", 64 * GIB), "damaged: "),
    "zeros.mp3": (make.bytes_of(b"\xff\xfb\x90\0", GIB // 64), "damaged: "),
    "zeros.avi": (make.bytes_of(b"RIFF\xff\xff\xff\xffAVI ", 64 * GIB), "damaged: "),
    "network.mp3": (make.bytes_of(make.ID3 + make.SESSION), "playlist that refers to other files"),
    "playlist.mp3": (make.bytes_of(make.ID3 + make.PLAYLIST), "damaged: "),
}

ODD: dict[str, make.Make] = {
    **{name: write for name, (write, _) in MEASURED.items()},
    **{name: write for name, (write, _) in SKIPPED.items()},
}
FILES = {**GOOD, **ODD}

READ = """
import json, sys
from pathlib import Path
from mmcalib.census.counter import count_corpus
from mmcalib.corpus.folder import FolderSource
from tests.census.looking import looked, prober

seen = {}
def look(item):
    found = looked(item)
    seen[Path(item.path).name] = repr(found)
    return found

taken = count_corpus([FolderSource(sys.argv[1])], prober(look))
peak = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
print(json.dumps({
    "seen": seen,
    "files": taken.files,
    "measured": taken.census.items(),
    "skipped": {Path(one.path).name: one.reason for one in taken.skipped},
    "rss_mib": int(peak[0].split()[1]) >> 10,
}))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All files in one folder, read by another process, which must end in time. `seen` has a `repr`
    for each.
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    folder = tmp_path_factory.mktemp("hostile")
    for name, write in FILES.items():
        write(folder / name)
    done = run_python("-c", READ, folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(**json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", MEASURED)
def test_odd_but_sound_files_are_measured(outcome, name: str) -> None:
    assert outcome.seen[name] == repr(MEASURED[name][1])


@pytest.mark.parametrize("name", SKIPPED)
def test_damaged_files_are_skipped_with_a_reason(outcome, name: str) -> None:
    reason = outcome.skipped[name]
    assert reason.startswith(SKIPPED[name][1])
    assert len(reason) <= 200
    assert reason.isprintable()
    assert not re.search(r"Error\b.*Error\b|Traceback", reason)


def test_every_file_is_accounted_for(outcome) -> None:
    assert outcome.files == len(GOOD) + len(MEASURED) + len(SKIPPED)
    assert outcome.measured + len(outcome.skipped) == outcome.files
    assert outcome.measured == len(GOOD) + len(MEASURED)


def test_good_files_are_measured_as_without_the_others(outcome, tmp_path: Path) -> None:
    for name, write in GOOD.items():
        write(tmp_path / name)
        assert outcome.seen[name] == repr(looked(Item(str(tmp_path / name))))


def test_none_of_them_takes_much_memory(outcome) -> None:
    assert outcome.rss_mib < 300
