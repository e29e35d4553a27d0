"""The media that requests name: every form a client may send, made once into a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from judging import clips, images, sounds

# Whoever changes what a maker writes raises this, so that old files are not taken for new ones.
VERSION = 7

# Media that take a server seconds, or a request dozens of MiB: drawn seldom, sent by path alone.
HEAVY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Medium:
    """One file. `kind` is image, video or audio: the part of a request that names it."""

    name: str
    kind: str
    path: Path
    heavy: bool

    @property
    def is_frames(self) -> bool:
        """Frames that the client has cut: no file of theirs exists but in a `data:` URL."""
        return self.path.suffix == ".frames"


class Pool:
    """Every medium by its name, or those `only`, below `folder`/media-VERSION.

    What this machine's libraries cannot write is left out and listed in `missing` by the reason.
    """

    def __init__(self, folder: Path, only: Collection[str] | None = None) -> None:
        self.folder = folder / f"media-{VERSION}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.missing: dict[str, str] = {}
        self._media: dict[str, Medium] = {}
        for kind, makers in (
            ("image", images.MAKERS),
            ("video", clips.MAKERS),
            ("audio", sounds.MAKERS),
        ):
            for name, make in makers.items():
                if only is None or name in only:
                    self._add(name, kind, make)

    def __getitem__(self, name: str) -> Medium:
        return self._media[name]

    def __contains__(self, name: str) -> bool:
        return name in self._media

    def of(self, kind: str, *, heavy: bool) -> list[str]:
        """Names in the order of the makers."""
        return [m.name for m in self._media.values() if m.kind == kind and m.heavy is heavy]

    def _add(self, name: str, kind: str, make: Callable[[Path], object]) -> None:
        path = self.folder / name
        refused = path.with_name(f"{name}.missing")
        if refused.exists():
            self.missing[name] = refused.read_text("utf-8")
            return
        if not path.exists():
            half = path.with_name(f"half-{os.getpid()}-{name}")
            try:
                make(half)
            except Exception as error:  # noqa: BLE001 - any library may lack any codec
                half.unlink(missing_ok=True)
                refused.write_text(f"{type(error).__name__}: {error}", "utf-8")
                self.missing[name] = refused.read_text("utf-8")
                return
            half.rename(path)
        heavy = name in HEAVY or path.stat().st_size > HEAVY_BYTES
        self._media[name] = Medium(name, kind, path, heavy)


HEAVY = frozenset({*images.HEAVY, *clips.HEAVY, *sounds.HEAVY})
