"""The errors that a user can cause or fix, as one tree.

    MmcalibError                exit 1   a failure
    ├── UsageError              exit 2   the command or its arguments are wrong
    ├── CorpusError             exit 1   the media or requests cannot be used
    ├── ModelError              exit 1   the model cannot be found, or is not multimodal
    ├── EngineError             exit 1   vLLM gave no answer
    │   ├── VllmRefused         exit 1   vLLM rejected the request
    │   │   ├── NotMultimodal   exit 1   the model takes no media
    │   │   └── ConfigRejected  exit 1   vLLM does not start with these settings
    │   ├── VllmMoved           exit 1   a part is missing in this release
    │   ├── VllmMissing         exit 1   vLLM is not installed
    │   └── EngineDied          exit 1   the process that ran vLLM ended
    │       └── EngineSilent    exit 1   it did not answer in time
    ├── OutputError             exit 1   a result cannot be written
    └── VerdictError            exit 3   everything ran, and a check failed

Raised anywhere, printed in one place (`mmcalib.cli`). The hint is the next command to type.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class MmcalibError(Exception):
    """A failure: a message of one line, the `hint` to type next, and `reason`, without the job."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or message
        self.hint = hint

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        return [f"try: {self.hint}"] if self.hint else []


# Programming errors, never a damaged file.
BUGS = (TypeError, AttributeError, ImportError, NameError)


# A full disk, for example behind standard output.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def unexpected(error: Exception, *, at: str = "") -> MmcalibError:
    """An unforeseen exception as one line; `at` is the item that caused it."""
    where = f" at {at}" if at else ""
    if isinstance(error, OSError) and error.errno in _FULL:
        return OutputError(f"cannot write{where}: {error.strerror}", hint="df -h")
    message = ": ".join([where, *filter(None, [" ".join(str(error).split())])])
    bug = "" if isinstance(error, OSError) else "; please report this bug"
    return MmcalibError(
        f"unexpected {type(error).__name__}{message}",
        hint=f"MMCALIB_DEBUG=1 mmcalib ... shows where{bug}",
    )


def first_error(error: ValidationError) -> str:
    """Return pydantic's first error and its path."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


class UsageError(MmcalibError):
    """The command line, an argument or a requests file is wrong."""

    exit_code = 2


class CorpusError(MmcalibError):
    """The data is missing, empty, or the model accepts none of it."""


class ModelError(MmcalibError):
    """The model cannot be found offline, or takes no media."""


class EngineError(MmcalibError):
    """vLLM gave no answer. `exhausted` names what this machine ran out of, if that is why."""

    def __init__(
        self, message: str, *, hint: str = "", reason: str = "", exhausted: str = ""
    ) -> None:
        super().__init__(message, hint=hint, reason=reason)
        self.exhausted = exhausted


class VllmRefused(EngineError):  # noqa: N818 - what it did
    """vLLM rejected something or failed; `reason` is its own message."""


class VllmMoved(EngineError):  # noqa: N818 - what it did
    """A part of vLLM that mmcalib uses is missing in this release, or differs."""


class VllmMissing(EngineError):  # noqa: N818 - what is wrong
    """vLLM is not installed in mmcalib's environment."""

    def __init__(self, message: str = "vLLM is not installed") -> None:
        super().__init__(message, hint="mmcalib doctor (shows how to install it)")


class NotMultimodal(VllmRefused):
    """The model takes no images, video or audio."""


class ConfigRejected(VllmRefused):
    """vLLM's own code rejects the settings, on this GPU or for this model."""


class EngineDied(EngineError):  # noqa: N818 - what happened, not what kind
    """The child process that runs vLLM ended or was killed."""


class EngineSilent(EngineDied):
    """The child process did not answer in time."""


class OutputError(MmcalibError):
    """A result cannot be written."""


class VerdictError(MmcalibError):
    """The job finished and a check failed."""

    exit_code = 3
