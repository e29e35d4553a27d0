"""Makers of archives, good and hostile."""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.corpus.media import png as png


def member(
    name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


def tar(path: Path, *members: tuple[str, bytes], mode: Any = "w", **options: Any) -> Path:
    """An archive of these names and bytes, in this order; names may repeat."""
    with tarfile.open(path, mode, **options) as archive:
        for name, data in members:
            archive.addfile(member(name, len(data)), io.BytesIO(data))
    return path


def zipped(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def blocks(*headers: tarfile.TarInfo) -> bytes:
    """Headers alone, whatever they say of data."""
    return b"".join(header.tobuf() for header in headers)


END = bytes(1024)


def samples(count: int) -> Iterator[tuple[str, bytes]]:
    for number in range(count):
        yield f"{number:06}.png", png()
        yield f"{number:06}.txt", f"caption {number}".encode()
