"""Read untrusted documents, write files and folders atomically, make temporary folders."""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import IO, Any, Final

from mmcalib.errors import OutputError
from mmcalib.processes import Closing
from mmcalib.text import MIB


def write_text(path: Path, text: str) -> None:
    """Replace the file's content atomically. Raises OutputError and keeps the old content."""
    write_texts({path: text})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Replace files that belong together; if one fails, all keep their text. Raises OutputError."""
    waiting: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            content = text.encode(errors="surrogateescape")
            waiting[path] = path.parent / f".mmcalib-{secrets.token_hex(8)}"
            with open(waiting[path], "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in waiting.items():
            temporary.replace(path)
    except (OSError, UnicodeEncodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write {path}: {why}", hint="--out another folder") from error
    finally:
        for temporary in waiting.values():
            with contextlib.suppress(OSError):
                temporary.unlink()


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file, or copy it if the file system has no hard links. Raises OSError."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def is_within(path: str, folder: str) -> bool:
    """Return whether `path` is the folder or below it; both are absolute, links resolved."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def open_document(path: str | Path) -> FileIO:
    """Open a file or a pipe for reading; a pipe without a writer is empty. Raises OSError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    os.set_blocking(handle, True)
    try:
        # This fails for a folder.
        return FileIO(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def read_document(path: str | Path, most_bytes: int) -> bytes:
    """Read the whole file. Raises OSError, also if it is larger than `most_bytes`."""
    data = bytearray()
    with open_document(path) as file:
        while block := file.read(min(MIB, most_bytes + 1 - len(data))):
            data += block
            if len(data) > most_bytes:
                raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes")
    return bytes(data)


def cut_lines(file: IO[bytes], most_bytes: int) -> Iterator[bytes]:
    """Yield lines; one that exceeds the limit is cut one byte past it."""
    while line := file.readline(most_bytes + 1):
        end = line
        while end and not end.endswith(b"\n"):
            end = file.readline(MIB)
        yield line


def encoding_of(head: bytes) -> str:
    """Name a text's encoding by its byte order mark: PowerShell's `>` writes UTF-16."""
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


# Far above any count of bytes or items.
_NUMBER_BELOW: Final = 2.0**62


def read_json(path: str | Path, most_bytes: int) -> Any:
    """Read JSON. Raises OSError, and ValueError or RecursionError for any other file.

    Numbers are finite and below 2**62, so that figures can be computed with them.
    """
    text = read_document(path, most_bytes).decode()
    return json.loads(text, parse_constant=_float, parse_int=_int, parse_float=_float)


def _float(digits: str) -> float:
    number = float(digits)
    if not abs(number) < _NUMBER_BELOW:
        raise ValueError(f"the number {digits[:18]} is out of range")
    return number


def _int(digits: str) -> int:
    _float(digits)
    return int(digits)


class Scratch(Closing):
    """A private folder in TMPDIR at `path`, removed on close or at exit. Raises OutputError."""

    def __init__(self) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="mmcalib-")
        except OSError as error:
            raise OutputError(
                f"no folder for temporary files: {error.strerror}",
                hint="export TMPDIR=/a/folder/that/is/yours",
            ) from error
        self.path = Path(self._folder.name)

    def close(self) -> None:
        self._folder.cleanup()


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield a scratch folder that replaces `target` if the block succeeds. Raises OutputError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        # mkdtemp's 0700 would hide the folder from a server that runs as another user.
        scratch.chmod(0o755)
    except OSError as error:
        raise OutputError(
            f"cannot write to {target.parent}: {error}",
            hint="export MMCALIB_CACHE_DIR=/a/folder/that/is/yours",
        ) from error
    try:
        yield scratch
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
        try:
            if target.exists():
                target.rename(old / "was")
            scratch.rename(target)
        except OSError as error:
            raise OutputError(f"cannot replace {target}: {error}") from error
        finally:
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
