"""Files that a user may not read or write, and those that others have laid before them."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus.tars import png
from tests.schemas import CALIBRATION
from tests.security.commands import ended

NOBODY = 65534
MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home with a corpus of two pictures; it can be removed, whatever a test forbids."""
    media = tmp_path / "media"
    media.mkdir()
    for number in (1, 2):
        (media / f"{number}.png").write_bytes(png(number, number))
        os.utime(media / f"{number}.png", (1_700_000_000.5, 1_700_000_000.5))
    yield tmp_path
    for parent, folders, _ in os.walk(tmp_path):
        for name in folders:
            if not os.path.islink(os.path.join(parent, name)):
                os.chmod(os.path.join(parent, name), 0o700)


def counted(home: Path, *words: object, **more: object) -> tuple[int, list[str], str]:
    """How many items, why others were skipped, and what was said."""
    done = ended(home, "scan", "--data", "media", *words, "--json", **more)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    return found["corpus"]["items"], [one["reason"] for one in found["skipped"]], done.stderr


@pytest.mark.usefixtures("ordinary_user")
@pytest.mark.parametrize("name", ["1.png", "a.tar", "a.zip", "a.parquet", "folder"])
def test_what_may_not_be_read_is_skipped_until_it_may(name: str, home: Path) -> None:
    path = home / "media" / name
    if name == "folder":
        path.mkdir()
    elif name != "1.png":
        path.write_bytes(b"x")
    path.chmod(0)
    items, reasons, _ = counted(home)
    assert reasons == ["no permission to read it"]
    assert items == (1 if name == "1.png" else 2)
    path.chmod(0o700)
    assert counted(home)[0] == 2
    assert "no permission to read it" not in counted(home)[1]


@pytest.mark.usefixtures("ordinary_user")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("scan --data locked", "no permission"),
        ("scan --data locked.png", "no permission"),
        ("scan --data @locked.txt", "locked.txt"),
        ("scan --requests locked.jsonl", "locked.jsonl"),
        ("check media --calibration locked.json", "locked.json"),
        ("report locked", "locked"),
        (f"run --model {MODEL} --data media --out frozen/out", "--out frozen/out"),
        pytest.param("run --model ./locked --data media", "locked", marks=pytest.mark.engine),
    ],
)
def test_what_may_not_be_had_is_one_error(words: str, says: str, home: Path) -> None:
    for name in ("locked", "frozen"):
        (home / name).mkdir()
        (home / name / "calibration.json").write_text("{}")
    for name in ("locked.png", "locked.txt", "locked.jsonl", "locked.json", "locked.yaml"):
        (home / name).write_text("{}")
        (home / name).chmod(0)
    (home / "locked").chmod(0)
    (home / "frozen").chmod(0o500)
    done = ended(home, *words.split())
    assert done.returncode in (1, 2)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("note")]
    assert "Traceback" not in done.stderr
    assert "report this bug" not in done.stderr
    (error,) = [line for line in errors if line.startswith("error: ")]
    assert says in error
    assert errors[-1].startswith("  try: ")


@pytest.mark.usefixtures("ordinary_user")
@pytest.mark.parametrize("name", ["cache", "home", "file"])
def test_a_cache_that_may_not_be_written_is_a_note(name: str, home: Path) -> None:
    cache = home / "cache"
    cache.mkdir()
    if name == "file":
        (cache / "census").touch()
    else:
        cache.chmod(0o500)
    more = {"HOME": cache, "MMCALIB_CACHE_DIR": ""} if name == "home" else {}
    items, _, said = counted(home, **more)
    assert items == 2
    assert len(re.findall("no cache for this corpus", said)) == 1


@pytest.mark.usefixtures("ordinary_user")
def test_temporary_files_go_elsewhere_where_their_folder_is_locked(home: Path) -> None:
    (home / "locked").mkdir(mode=0o500)
    words = ["check", "media", "--calibration", CALIBRATION, "--allow-unknown"]
    done = ended(home, *words, TMPDIR=home / "locked")
    assert done.returncode in (0, 3), done.stderr
    assert os.listdir(home / "locked") == []


def theirs(path: Path, mode: int) -> Path:
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(mode)
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make what is another user's")
@pytest.mark.parametrize("kind", ["folder", "link", "link to ours", "file"])
def test_what_another_user_laid_in_a_shared_cache_folder_is_not_used(kind: str, home: Path) -> None:
    """MMCALIB_CACHE_DIR may be a folder in /tmp that both may write to."""
    cache, victim = home / "cache", home / "victim"
    for folder in (cache, victim):
        folder.mkdir()
    cache.chmod(0o1777)
    path = cache / "census"
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.touch()
    else:
        path.symlink_to(victim)
    theirs(path, 0o777)
    if kind == "link":
        theirs(victim, 0o777)
    items, _, said = counted(home)
    assert items == 2
    assert ("File exists" if kind == "file" else "another user") in said
    assert list(victim.iterdir()) == []
