"""Every failure that a user can cause or cure, as one tree.

    MmcalibError                exit 1   something failed; the message says what
    ├── UsageError              exit 2   the command or its arguments are wrong
    ├── CorpusError             exit 1   the media or requests cannot be used
    ├── ModelError              exit 1   the model cannot be found, or is not multimodal
    ├── EngineError             exit 1   vLLM gave no answer
    │   ├── VllmRefused         exit 1   it said no
    │   │   └── NotMultimodal   exit 1   the model takes no media
    │   ├── VllmMoved           exit 1   what mmcalib asks it for is not there in this release
    │   ├── VllmMissing         exit 1   it is not installed
    │   └── EngineDied          exit 1   the process that ran vLLM ended
    │       └── EngineSilent    exit 1   it did not answer in time, and was ended
    ├── OutputError             exit 1   a result cannot be written
    └── VerdictError            exit 3   everything ran, and the answer is no

Raised anywhere, printed in one place (`mmcalib.cli`). The hint is the next command to type.
"""

from __future__ import annotations


class MmcalibError(Exception):
    """A failure with a one-line message, the next thing to do, and an exit code. `reason` is the
    message without what was being done. A traceback shows the hint, too.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or message
        self.hint = hint

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        return [f"try: {self.hint}"] if self.hint else []


# A mistake in a program, never damage of a file.
BUGS = (TypeError, AttributeError, ImportError, NameError)


def unexpected(error: Exception, *, at: str = "") -> MmcalibError:
    """An exception that mmcalib does not foresee, as one line; `at` is the item it came up with."""
    where = f" at {at}" if at else ""
    said = ": ".join([where, *filter(None, [" ".join(str(error).split())])])
    bug = "" if isinstance(error, OSError) else "; it is a bug, please report it"
    return MmcalibError(
        f"unexpected {type(error).__name__}{said}",
        hint=f"MMCALIB_DEBUG=1 mmcalib ... shows where{bug}",
    )


class UsageError(MmcalibError):
    """The command line, an argument or a requests file says something that cannot be meant."""

    exit_code = 2


class CorpusError(MmcalibError):
    """The corpus is missing, empty, or has nothing that the model accepts."""


class ModelError(MmcalibError):
    """The model cannot be resolved offline, or takes no media."""


class EngineError(MmcalibError):
    """vLLM gave no answer. `exhausted` names what this machine ran out of, where that is why."""

    def __init__(
        self, message: str, *, hint: str = "", reason: str = "", exhausted: str = ""
    ) -> None:
        super().__init__(message, hint=hint, reason=reason)
        self.exhausted = exhausted


class VllmRefused(EngineError):  # noqa: N818 - what it did
    """vLLM refused or failed at something; `reason` are its own words."""


class VllmMoved(EngineError):  # noqa: N818 - what it did
    """The installed release lacks what mmcalib reaches for, or takes it in another way: nothing
    follows for what was asked.
    """


class VllmMissing(EngineError):  # noqa: N818 - what is wrong
    """vLLM is not installed beside mmcalib."""

    def __init__(self, *, hint: str = "mmcalib doctor (says how to install it here)") -> None:
        super().__init__("vLLM is not installed beside mmcalib", hint=hint)


class NotMultimodal(VllmRefused):
    """The model takes no images, video or audio."""


class EngineDied(EngineError):  # noqa: N818 - what happened, not what kind
    """The child process that owns vLLM ended, was killed, or did not answer in time."""


class EngineSilent(EngineDied):
    """It did not answer in time."""


class OutputError(MmcalibError):
    """A result cannot be written where it was asked for."""


class VerdictError(MmcalibError):
    """The job ran to its end and its answer is no."""

    exit_code = 3
