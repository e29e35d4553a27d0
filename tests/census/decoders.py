"""Looks that misbehave as decoders do, by the name of the file; workers import them from here."""

import ctypes
import os
import signal
import time
from pathlib import Path

from mmcalib.domain.items import Item, ProbedMedia
from mmcalib.domain.shapes import ImageShape
from mmcalib.errors import UsageError


def behave(item: Item) -> ProbedMedia | str:
    """A picture as wide as the name is long, unless the name says otherwise."""
    name = os.path.basename(item.path)
    if "hang" in name:
        time.sleep(600)
    if "compute" in name:
        while True:
            pass
    if "say" in name:
        return f"said of {name}"
    if "segfault" in name:
        ctypes.string_at(0)
    if "abort" in name:
        os.abort()
    if "exit" in name:
        os._exit(7)
    if "explode" in name:
        return ImageShape(len(bytearray(1 << 40)), 1)
    if "raise" in name:
        raise NotImplementedError("no such thing")
    if "mistake" in name:
        os.stat(item.path, no_such_argument=True)  # type: ignore[call-arg]
    if "missing" in name:
        raise UsageError("a package is missing", hint="pip install it")
    if "slow" in name:
        time.sleep(0.05)
    if "once" in name and not os.path.exists(f"{item.path}.seen"):
        Path(f"{item.path}.seen").touch()
        os.kill(os.getpid(), signal.SIGSTOP if "stop" in name else signal.SIGKILL)
    if "grow" in name:
        with open(item.path, "ab") as file:
            file.write(b"more")
    return ImageShape(len(name), 1)


def held_bytes(item: Item) -> ImageShape:
    """A look at bytes that came with the item."""
    assert item.byte_source is not None
    assert item.byte_source.data is not None
    return ImageShape(len(item.byte_source.data), 1)
