"""Packages of the index: downloaded by pip and unzipped, never installed."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

from recipe import Item, MaterialiseError, Package

FETCH_TIMEOUT_S = 600


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
