"""Find the knobs of a model: options that change the cost of its items, by trying them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, product
from typing import Any

from mmcalib.child.processor import Processor, load, measure_cost
from mmcalib.domain import knobs
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.messages import Blank
from mmcalib.releases.processors import call_defaults
from mmcalib.text import whole_as_int

# Large enough for several tiles and slim enough for pan-and-scan; larger ones only take longer.
_PROBES: Mapping[Modality, Shape] = {
    "image": ImageShape(1536, 1024),
    "video": VideoShape(num_frames=60, fps=30.0, duration_s=2.0, width_px=640, height_px=360),
    "audio": AudioShape(num_samples=48_000, sample_rate_hz=16_000),
}

# The path of an option, and other options that it requires.
Spelling = tuple[tuple[str, ...], Mapping[str, Any]]


class Trial:
    """Measures one blank item of each modality under any setting."""

    def __init__(self, default: Processor, under: Callable[[knobs.Setting], Processor]) -> None:
        self.default = default
        self.under = under
        self.info = default.info
        self.modalities: list[Modality] = [m for m in _PROBES if m in self.info.supported_mm_limits]
        self._costs: dict[tuple[str, Modality], tuple[int, int] | None] = {}

    def part(self, name: str) -> Any:
        return getattr(self.info.get_hf_processor(), name, None)

    def effective_options(
        self, spellings: Iterable[Spelling], value: int, modality: Modality
    ) -> Iterator[tuple[Spelling, tuple[Modality, ...]]]:
        """Yield spellings that affect this modality, with others they affect; clean ones first."""
        affecting_others = []
        for path, beside in spellings:
            setting = knobs.Setting(knobs.nest(path, value, beside))
            now = self.cost(setting, modality)
            if now is None or now == self.cost(knobs.DEFAULT, modality):
                continue
            others = (m for m in self.modalities if m != modality)
            also = tuple(m for m in others if self.cost(setting, m) != self.cost(knobs.DEFAULT, m))
            if also:
                affecting_others.append(((path, beside), also))
            else:
                yield (path, beside), ()
        yield from affecting_others

    def image_option(
        self, *name: str, tried: int, beside: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[tuple[str, ...], tuple[Modality, ...]]]:
        """Yield the path of an image option that works, and other modalities it affects, if any."""
        if "image" not in self.modalities:
            return
        spellings = [(path, beside or {}) for path in (("images_kwargs", *name), name)]
        for (path, _), bleeds in islice(self.effective_options(spellings, tried, "image"), 1):
            yield path, bleeds

    def cost(self, setting: knobs.Setting, modality: Modality) -> tuple[int, int] | None:
        key = setting.key, modality
        if key not in self._costs:
            try:
                measured = measure_cost(Blank(_PROBES[modality]), self.under(setting))
                self._costs[key] = measured.tokens, measured.embeds
            except Exception:  # noqa: BLE001 - vLLM rejects the option
                self._costs[key] = None
        return self._costs[key]


# Names in InternVL and its derivatives, Phi, MiniCPM-V, Llama 4 and Cohere.
_NAMES = ("max_dynamic_patch", "num_crops", "max_slice_nums", "max_patches")


def tile_knobs(trial: Trial) -> Iterator[knobs.Knob]:
    for name in _NAMES:
        for holder in _holders(trial.info):
            value = getattr(holder, name, None)
            if isinstance(value, int) and value > 1:
                for path, bleeds in trial.image_option(name, tried=1):
                    px, embeds = _tile_size(trial, path)
                    yield knobs.TileCap(
                        path=path, value=value, bleeds=bleeds, tile_px=px, tile_embeds=embeds
                    )
                break


def _tile_size(trial: Trial, path: tuple[str, ...]) -> tuple[int | None, int | None]:
    """Return the pixels of one tile, and its embeds if images take whole tiles and nothing else."""
    part = trial.part("image_processor")
    edges = [getattr(part, name, None) for name in ("image_size", "scale_resolution")]
    edges.append(dict(getattr(part, "size", None) or {}).get("height"))
    tile_px = next((edge**2 for edge in edges if isinstance(edge, int)), None)
    one, usual = (
        trial.cost(s, "image") for s in (knobs.Setting(knobs.nest(path, 1, {})), knobs.DEFAULT)
    )
    whole = one is not None and usual is not None and usual[1] % one[1] == 0
    return tile_px, one[1] if one and whole else None


def tiles_images(default: Any) -> bool:
    """Return True if the model cuts images into tiles by a list of layouts (InternVL, LLaVA)."""
    names = ("max_dynamic_patch", "image_grid_pinpoints")
    return any(getattr(holder, name, None) for holder in _holders(default.info) for name in names)


def _holders(info: Any) -> tuple[Any, ...]:
    processor = info.get_hf_processor()
    return getattr(processor, "image_processor", None), processor, info.get_hf_config()


_SWITCH, _CROPS = "do_pan_and_scan", "pan_and_scan_max_num_crops"
# The processor cuts a slim image into at least two crops; one crop would be the whole image.
_FEWEST = 2
# A clip longer than any sampler keeps: half a minute at 30 frames per second.
_CLIP = VideoShape(num_frames=900, fps=30.0, duration_s=30.0, width_px=64, height_px=64)
# Number of equal steps up to the default.
_STEPS = 8
# The only values that Gemma 4's processor accepts.
_SOFT_TOKENS = (70, 140, 280, 560, 1120)


def find_knobs(
    default: Processor, under: Callable[[knobs.Setting], Processor]
) -> Iterator[knobs.Knob]:
    """Yield each knob with its default, in a spelling that affects one modality if possible."""
    trial = Trial(default, under)
    for find in (area_knobs, _edges, tile_knobs, _crops, _frames, _tokens):
        yield from find(trial)


def _edges(trial: Trial) -> Iterator[knobs.Knob]:
    """Yield `size.longest_edge` of Idefics3 and SmolVLM, in steps of their tiles."""
    part = trial.part("image_processor")
    longest = dict(getattr(part, "size", None) or {}).get("longest_edge")
    tile = dict(getattr(part, "max_image_size", None) or {}).get("longest_edge")
    if not longest or not tile or not tile < longest < SMALLEST_AREA_PX:
        return
    steps = (*range(int(tile), int(longest), int(tile)), int(longest))
    for path, bleeds in trial.image_option("size", "longest_edge", tried=int(tile)):
        yield knobs.EdgeCap(path=path, value=int(longest), steps=steps, bleeds=bleeds)


def _crops(trial: Trial) -> Iterator[knobs.Knob]:
    """Yield Gemma 3's most pan-and-scan crops; 0 turns them off, as most checkpoints do."""
    most = _crop_default(trial, _CROPS)
    if not isinstance(most, int) or most < _FEWEST:
        return
    value = most if _crop_default(trial, _SWITCH) else 0
    tried = 0 if value else _FEWEST
    steps = (0, *range(_FEWEST, most + 1))
    for path, bleeds in trial.image_option(_CROPS, tried=tried, beside={_SWITCH: bool(tried)}):
        yield knobs.CropCap(path=path, value=value, steps=steps, switch=_SWITCH, bleeds=bleeds)


def _crop_default(trial: Trial, name: str) -> Any:
    own = getattr(trial.part("image_processor"), name, None)
    if own is not None:
        return own
    return call_defaults(trial.default.processor, "images_kwargs").get(name)


def _frames(trial: Trial) -> Iterator[knobs.Knob]:
    """Yield the loader's `num_frames` or `fps`, the one that the model's loader uses."""
    if "video" not in trial.modalities:
        return
    frames = _sampled_frames(trial.default)
    for name, tried in (("num_frames", 8), ("fps", 1)):
        now = _sampled_frames(trial.under(knobs.Setting(media_io_kwargs={"video": {name: tried}})))
        if now == frames:
            continue
        value = frames if name == "num_frames" else whole_as_int(frames / _CLIP.duration_s)
        parts = [value * step / _STEPS for step in range(1, _STEPS + 1)]
        steps = {whole_as_int(part) if name == "fps" else max(1, round(part)) for part in parts}
        yield knobs.FrameSampling(path=("video", name), value=value, steps=tuple(sorted(steps)))
        return


def _sampled_frames(processor: Processor) -> int:
    return load(Blank(_CLIP), processor)[1][0]


# `longest_edge` means an edge or an area. An edge has at most some thousands of pixels, an area at
# least some tens of thousands (the smallest known default is Qwen3-VL's 65,536).
SMALLEST_AREA_PX = 20_000
# Small enough to change the cost of the probes.
_TRIED_PX = 100_000
# `smart_resize`'s own, where a processor names none (MiniMax-M3's of images).
_LEAST_PX = 56 * 56
_PARTS: tuple[tuple[Modality, str, str], ...] = (
    ("image", "images_kwargs", "image_processor"),
    ("video", "videos_kwargs", "video_processor"),
)


def area_knobs(trial: Trial) -> Iterator[knobs.Knob]:
    """Yield caps on the area of images and video frames, in spellings that work together."""
    first = [cap for part in _PARTS for cap in islice(_area_caps(trial, *part), 1)]
    if _work_together(trial, first):
        yield from first
        return
    combinations = product(*(_area_caps(trial, *part) for part in _PARTS))
    yield from next((caps for caps in combinations if _work_together(trial, caps)), first)


def _work_together(trial: Trial, caps: Iterable[knobs.AreaCap]) -> bool:
    """Return True if each modality costs the same under all caps as under its own."""
    settings = {cap.modality: cap.setting(max(cap.least_px, _TRIED_PX)) for cap in caps}
    merged = knobs.merge_settings(settings.values())
    return all(trial.cost(merged, m) == trial.cost(own, m) for m, own in settings.items())


def _area_caps(
    trial: Trial, modality: Modality, scope: str, attribute: str
) -> Iterator[knobs.AreaCap]:
    """Yield a cap for each spelling that works; those that affect only this modality come first."""
    part = trial.part(attribute)
    if modality not in trial.modalities or part is None:
        return
    size = dict(getattr(part, "size", None) or {})
    most = size.get("longest_edge") or getattr(part, "max_pixels", None)
    # Qwen2.5-Omni's processor calls its video processor with another least area than it has.
    usual = call_defaults(trial.default.processor, scope)
    least = dict(usual.get("size", {})).get("shortest_edge")
    least = least or size.get("shortest_edge") or getattr(part, "min_pixels", None) or _LEAST_PX
    if not most or most < SMALLEST_AREA_PX:
        return
    patch_px, merge = getattr(part, "patch_size", None), getattr(part, "merge_size", None)
    spellings = _spellings(scope, int(least))
    for (path, beside), bleeds in trial.effective_options(
        spellings, max(int(least), _TRIED_PX), modality
    ):
        yield knobs.AreaCap(
            modality=modality,
            path=path,
            value=int(most),
            token_px=(patch_px * merge) ** 2 if patch_px and merge else None,
            least_name=next(iter(beside)),
            least_px=int(least),
            bleeds=bleeds,
        )


def _spellings(scope: str, least: int) -> Iterator[Spelling]:
    """Yield spellings for one modality first, and new names before old ones."""
    for outer in ((scope,), ()):
        yield (*outer, "size", "longest_edge"), {"shortest_edge": least}
        yield (*outer, "max_pixels"), {"min_pixels": least}


def _tokens(trial: Trial) -> Iterator[knobs.Knob]:
    part = trial.part("image_processor")
    value = getattr(part, "max_soft_tokens", None)
    if value not in _SOFT_TOKENS:
        return
    tried = next(tokens for tokens in _SOFT_TOKENS if tokens != value)
    patch_px, pooled = (getattr(part, name, None) for name in ("patch_size", "pooling_kernel_size"))
    token_px = (patch_px * pooled) ** 2 if patch_px and pooled else None
    for path, bleeds in trial.image_option("max_soft_tokens", tried=tried):
        yield knobs.TokenCap(
            path=path, value=value, steps=_SOFT_TOKENS, bleeds=bleeds, token_px=token_px
        )
