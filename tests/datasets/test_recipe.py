"""The sample corpus: recipe and requests are well formed, and materialise keeps its word."""

import hashlib
import io
import json
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

# As for a script: its neighbours are found beside it.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "datasets"))

import materialise
from packages import pip_arguments
from recipe import MaterialiseError, Package, load_recipe

DATASETS = Path(materialise.__file__).parent
FILES: list[dict[str, Any]] = tomllib.loads((DATASETS / "sample.toml").read_text())["file"]
BY_TARGET = {entry["target"]: entry for entry in FILES}


def _requests(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATASETS / name).read_text().splitlines()]


def _media(request: dict[str, Any]) -> list[tuple[str, str]]:
    """(part type, url) of every media part of a request, in order."""
    contents = [message["content"] for message in request["messages"]]
    parts = [part for one in contents if isinstance(one, list) for part in one]
    return [(part["type"], part[part["type"]]["url"]) for part in parts if part["type"] != "text"]


def test_recipe_loads_and_names_are_unique() -> None:
    recipe = load_recipe(DATASETS / "sample.toml")
    assert len({item.target for item in recipe.items}) == len(recipe.items)
    assert len({item.sha256 for item in recipe.items}) == len(recipe.items)
    assert {item.package for item in recipe.items} == {p.name for p in recipe.packages}
    assert len({p.name for p in recipe.packages}) == len(recipe.packages)


@pytest.mark.parametrize("entry", FILES, ids=lambda entry: entry["target"])
def test_entry_is_well_formed(entry: dict[str, Any]) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", entry["sha256"])
    assert entry["bytes"] > 0
    assert entry["target"].split("/")[0] == entry["kind"]
    assert entry["licence"]
    assert entry["note"]
    facts = {
        "image": ("width_px", "height_px"),
        "video": ("width_px", "height_px", "num_frames", "fps", "duration_s"),
        "audio": ("sample_rate_hz", "duration_s"),
    }[entry["kind"]]
    assert all(entry[fact] > 0 for fact in facts)


@pytest.mark.parametrize(
    ("name", "minimum", "types"),
    [
        ("requests.jsonl", 24, {"image_url", "video_url"}),
        ("requests-audio.jsonl", 6, {"audio_url"}),
    ],
)
def test_requests(name: str, minimum: int, types: set[str]) -> None:
    requests = _requests(name)
    assert len(requests) >= minimum
    assert len({request["custom_id"] for request in requests}) == len(requests)
    for request in requests:
        media = _media(request)
        assert media, request["custom_id"]
        assert {kind for kind, _ in media} <= types
        assert request["messages"][-1]["role"] == "user"
        for kind, url in media:
            assert f"{BY_TARGET[url]['kind']}_url" == kind


def test_every_file_is_asked_about() -> None:
    requests = [request for name in materialise.REQUEST_FILES for request in _requests(name)]
    assert {url for request in requests for _, url in _media(request)} == set(BY_TARGET)


def test_no_address_of_a_registry_or_of_a_machine() -> None:
    # Registry hosts are looked for in the whole repository by tests/test_house.py.
    forbidden = re.compile(r"://|index-url|/tmp/|/root/|/home/")
    for path in DATASETS.iterdir():
        if path.is_file():
            assert not forbidden.search(path.read_text().lower()), path.name


CONTENT = b"not really a picture"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def _toml(
    *,
    member: str = "pkg/data/a.png",
    target: str = "image/a.png",
    sha256: str = SHA256,
    size: int = len(CONTENT),
) -> str:
    return (
        '[[package]]\nname = "pkg"\nversion = "1.0"\nformat = "wheel"\n'
        f'[[file]]\npackage = "pkg"\nmember = {json.dumps(member)}\n'
        f'target = {json.dumps(target)}\nsha256 = "{sha256}"\nbytes = {size}\n'
    )


class FakeIndex:
    """Serves one archive and counts how often it was asked."""

    def __init__(self, *, sdist: bool = False) -> None:
        self.calls = 0
        self.sdist = sdist

    def __call__(self, package: Any, folder: Path) -> None:
        self.calls += 1
        if self.sdist:
            with tarfile.open(folder / "pkg-1.0.tar.gz", "w:gz") as sdist:
                entry = tarfile.TarInfo("pkg/data/a.png")
                entry.size = len(CONTENT)
                sdist.addfile(entry, io.BytesIO(CONTENT))
                link = tarfile.TarInfo("pkg/data/link.png")
                link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
                sdist.addfile(link)
            return
        with zipfile.ZipFile(folder / "pkg-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("pkg/data/a.png", CONTENT)
            wheel.writestr("../escape.png", CONTENT)


def _run(tmp_path: Path, fetch: Any, toml: str, *options: str) -> int:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(toml)
    return materialise.main([str(tmp_path / "out"), *options], fetch=fetch, recipe_path=recipe)


def _media_files(tmp_path: Path) -> list[str]:
    out = tmp_path / "out"
    return sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file())


@pytest.mark.parametrize("sdist", [False, True])
def test_first_run_fetches_and_second_only_verifies(tmp_path: Path, capsys, sdist: bool) -> None:
    index = FakeIndex(sdist=sdist)
    assert _run(tmp_path, index, _toml()) == 0
    assert _media_files(tmp_path) == ["image/a.png", *sorted(materialise.REQUEST_FILES)]
    assert (tmp_path / "out/image/a.png").read_bytes() == CONTENT
    assert _run(tmp_path, index, _toml()) == 0
    assert index.calls == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "already in place, verified" in captured.err.splitlines()[-1]


def test_damaged_file_is_fetched_again(tmp_path: Path) -> None:
    index = FakeIndex()
    assert _run(tmp_path, index, _toml()) == 0
    (tmp_path / "out/image/a.png").write_bytes(b"damaged")
    assert _run(tmp_path, index, _toml()) == 0
    assert (tmp_path / "out/image/a.png").read_bytes() == CONTENT
    assert index.calls == 2


def test_cache_spares_the_download(tmp_path: Path) -> None:
    index = FakeIndex()
    cache = str(tmp_path / "cache")
    assert _run(tmp_path, index, _toml(), "--cache", cache) == 0
    (tmp_path / "out/image/a.png").unlink()
    assert _run(tmp_path, index, _toml(), "--cache", cache) == 0
    assert index.calls == 1


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        (_toml(sha256="0" * 64), "is not the file of the recipe"),
        (_toml(size=3), "is not the file of the recipe"),
        (_toml(member="pkg/data/gone.png"), "has no file pkg/data/gone.png"),
        (_toml(member="../escape.png"), "unsafe path"),
        (_toml(member="/etc/hostname"), "unsafe path"),
        (_toml(target="../a.png"), "unsafe path"),
        (_toml(target="image/../../a.png"), "unsafe path"),
        (_toml(target="image/.hidden"), "unsafe path"),
    ],
)
def test_refusal_leaves_nothing_behind(tmp_path: Path, capsys, toml: str, reason: str) -> None:
    assert _run(tmp_path, FakeIndex(), toml) == 1
    assert _media_files(tmp_path) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert reason in line
    assert "; " in line


def test_link_in_an_sdist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path, FakeIndex(sdist=True), _toml(member="pkg/data/link.png")) == 1
    assert _media_files(tmp_path) == []
    assert "has no file" in capsys.readouterr().err


def test_folder_that_leads_outside_is_refused(tmp_path: Path, capsys) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/image").symlink_to(elsewhere)
    assert _run(tmp_path, FakeIndex(), _toml()) == 1
    assert list(elsewhere.iterdir()) == []
    assert "leads outside" in capsys.readouterr().err


def test_failing_fetch_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fetch(package: Any, folder: Path) -> None:
        raise MaterialiseError(f"pip could not download {package.name}", hint="run again")

    assert _run(tmp_path, fetch, _toml()) == 1
    assert capsys.readouterr().err == "error: pip could not download pkg; run again\n"


def test_damaged_archive_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fetch(package: Any, folder: Path) -> None:
        (folder / "pkg-1.0.whl").write_bytes(b"PK\x03\x04 cut short")

    assert _run(tmp_path, fetch, _toml()) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be read" in line


def test_pip_is_asked_by_name_and_version_only() -> None:
    folder = Path("folder")
    wheel = pip_arguments(Package("a", "1", "wheel", ("win32", "39", "cp39")), folder)
    assert wheel[-1] == "a==1"
    assert "--only-binary" in wheel
    assert "win32" in wheel
    sdist = pip_arguments(Package("a", "1", "sdist"), folder)
    assert sdist[sdist.index("--no-binary") + 1] == "a"
    assert "--no-deps" in wheel
    assert "--no-deps" in sdist
