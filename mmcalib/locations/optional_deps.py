"""Libraries that bring bytes from elsewhere: imported when needed, their failures made plain."""

from __future__ import annotations

import errno
import importlib
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from mmcalib.errors import MmcalibError, UsageError
from mmcalib.wording import one_line

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)


def need(module: str, extra: str) -> Any:
    """Import an optional module. Raises UsageError when it is not installed, or does not load."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError):
            raise UsageError(one_line(f"{module} does not load here: {error}")) from error
        raise missing(module.partition(".")[0], extra) from error


def missing(package: str, extra: str) -> UsageError:
    """The error that says which extra brings `package`."""
    return UsageError(f"{package} is not installed", hint=f"pip install 'mmcalib[{extra}]'")


@contextmanager
def plain_errors(extra: str = "remote") -> Iterator[None]:
    """Whatever a library raises becomes OSError or ValueError, as every reader of files expects;
    a missing package becomes UsageError.
    """
    try:
        yield
    except FileNotFoundError as error:
        # fsspec says so of a web server whatever the server said.
        if error.__cause__ is None or isinstance(error.__cause__, FileNotFoundError):
            raise
        with plain_errors(extra):
            raise error.__cause__ from error
    except (OSError, ValueError, MemoryError, MmcalibError):
        raise
    except ImportError as error:
        raise UsageError(one_line(str(error)), hint=f"pip install 'mmcalib[{extra}]'") from error
    except _DAMAGED as error:
        raise ValueError(str(error)) from error
    except NotImplementedError as error:
        raise ValueError(f"not supported: {error}") from error
    except Exception as error:
        # aiohttp, botocore and others have trees of their own.
        status = getattr(error, "status", None)
        said = f"the server answers {status}" if isinstance(status, int) else str(error)
        raise OSError(errno.EIO, one_line(said or type(error).__name__)) from error


class _Foreign(io.RawIOBase):
    """A library's file whose failures are plain, whenever they come."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        with plain_errors():
            data = self._file.read(len(buffer))
        if len(data) > len(buffer):
            raise OSError(errno.EIO, "more bytes than were asked for")
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with plain_errors():
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def foreign(file: object) -> BinaryIO:
    """`file`, such as fsspec or zipfile make it, with plain errors. Small reads are gathered."""
    return cast("BinaryIO", io.BufferedReader(_Foreign(cast("BinaryIO", file))))
