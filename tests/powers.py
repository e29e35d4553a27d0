"""Root without what makes it more than an owner of files, so that permissions count for it too."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# capabilities(7), capget(2), prctl(2).
_VERSION_3 = 0x20080522
_PR_GET_SECUREBITS, _PR_SET_SECUREBITS = 27, 28
# Else root's children get all powers back (first), and access(2) checks regainable ones (second).
_NOROOT, _NO_SETUID_FIXUP = 1, 4


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def powerless() -> Iterator[None]:
    """Drop root's capabilities for this thread and its children. Raise OSError where it cannot."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *arguments: object) -> int:
        result: int = getattr(libc, function)(*arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), function)
        return result

    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    call("capget", ctypes.byref(header), sets)
    before = [one.effective for one in sets]
    bits = call("prctl", _PR_GET_SECUREBITS, 0, 0, 0, 0)
    call("prctl", _PR_SET_SECUREBITS, bits | _NOROOT | _NO_SETUID_FIXUP, 0, 0, 0)
    try:
        _set_effective(call, header, sets, [0, 0])
        yield
    finally:
        _set_effective(call, header, sets, before)
        call("prctl", _PR_SET_SECUREBITS, bits, 0, 0, 0)


def _set_effective(
    call: Callable[..., int], header: _Header, sets: ctypes.Array[_Sets], effective: list[int]
) -> None:
    for one, value in zip(sets, effective, strict=True):
        one.effective = value
    call("capset", ctypes.byref(header), sets)
