"""What an option does to blank items: the only proof that it is a knob."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mmcalib.child.costs import cost
from mmcalib.child.processor import Processor
from mmcalib.domain.knobs import DEFAULT, Setting, merged_settings
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.messages import Blank

# Large enough for several tiles and slim enough for pan-and-scan; larger ones only take longer.
_PROBES: Mapping[Modality, Shape] = {
    "image": ImageShape(1536, 1024),
    "video": VideoShape(num_frames=60, fps=30.0, duration_s=2.0, width_px=640, height_px=360),
    "audio": AudioShape(num_samples=48_000, sample_rate_hz=16_000),
}

# Where an option may be written, and what must stand beside it.
Spelling = tuple[tuple[str, ...], Mapping[str, Any]]


class Trial:
    """One blank item of each modality, costed under any setting."""

    def __init__(self, default: Processor, under: Callable[[Setting], Processor]) -> None:
        self.default = default
        self.under = under
        self.info = default.info
        self.modalities: list[Modality] = [m for m in _PROBES if m in self.info.supported_mm_limits]
        self._known: dict[tuple[str, Modality], tuple[int, int] | None] = {}

    def part(self, name: str) -> Any:
        """A part of the model's processor, such as its image processor; None without one."""
        return getattr(self.info.get_hf_processor(), name, None)

    def moves(self, setting: Setting, modality: Modality) -> bool:
        """Whether an item is accepted and costs something else than by default."""
        now = self._cost(setting, modality)
        return now is not None and now != self._cost(DEFAULT, modality)

    def bleeds(self, setting: Setting, own: Modality) -> tuple[Modality, ...]:
        """The other modalities whose items do not cost what they do by default."""
        return tuple(
            m
            for m in self.modalities
            if m != own and self._cost(setting, m) != self._cost(DEFAULT, m)
        )

    def heeded(
        self, spellings: Iterable[Spelling], value: int, modality: Modality
    ) -> Iterator[tuple[Spelling, tuple[Modality, ...]]]:
        """The spellings in which the value moves items of its own modality, with the modalities
        into which it bleeds; those first that bleed into none.
        """
        bleeding = []
        for path, beside in spellings:
            setting = Setting(nested(path, value, beside))
            if not self.moves(setting, modality):
                continue
            others = self.bleeds(setting, modality)
            if others:
                bleeding.append(((path, beside), others))
            else:
                yield (path, beside), ()
        yield from bleeding

    def together(self, settings: Mapping[Modality, Setting]) -> bool:
        """Whether items of each modality cost under all of them what they do under their own."""
        both = merged_settings(settings.values())
        return all(
            self._cost(both, modality) == self._cost(own, modality)
            for modality, own in settings.items()
        )

    def of_images(
        self, *name: str, tried: int, beside: Mapping[str, Any] | None = None
    ) -> tuple[tuple[str, ...], tuple[Modality, ...]] | None:
        """The path under which an option of images is heeded, alone of images or of all, and the
        modalities into which it bleeds.
        """
        paths = (("images_kwargs", *name), name)
        spellings = [(path, beside or {}) for path in paths]
        found = next(self.heeded(spellings, tried, "image"), None)
        return None if found is None else (found[0][0], found[1])

    def _cost(self, setting: Setting, modality: Modality) -> tuple[int, int] | None:
        key = setting.key, modality
        if key not in self._known:
            try:
                found = cost(Blank(_PROBES[modality]), self.under(setting))
                self._known[key] = found.tokens, found.embeds
            except Exception:  # noqa: BLE001 - an option that is refused is the answer
                self._known[key] = None
        return self._known[key]


def nested(path: tuple[str, ...], value: Any, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Processor kwargs with the value at `path` and the rest next to it."""
    inner: dict[str, Any] = {path[-1]: value, **beside}
    for key in reversed(path[:-1]):
        inner = {key: inner}
    return inner
