"""Bound the costs of unseen shapes, and make the calibration's list of costs.

A rule counts as proven only if it reproduces vLLM's costs of all measured shapes: those of the
corpus, and probes at the rule's own edges.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mmcalib.checks.facts import Decision
from mmcalib.decision.texts import Texts
from mmcalib.domain.knobs import AreaCap
from mmcalib.domain.model import Cost, ModelInfo
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, Measure
from mmcalib.errors import VllmMoved, VllmRefused
from mmcalib.gate import bounds
from mmcalib.limits.costs import ItemCost, Mismatch
from mmcalib.limits.policy import Policy
from mmcalib.progress import Progress
from mmcalib.releases.constants import (
    BY_RATE_MAX_FRAMES,
    MAX_ASPECT,
    VIDEO_FPS,
    VIDEO_FRAMES,
    VIDEO_SAMPLINGS,
)
from mmcalib.results import costs as c

# Larger blanks take too long for what they show.
_MOST_PX = 16_000_000
_CLIP_PX = 30_000_000
# Layouts of up to 12 tiles (InternVL's `max_dynamic_patch`), the largest to 6×6 (LLaVA-OneVision).
_TILES, _SQUARE = 12, 6
# The largest known tile edge (InternVL's; other models use 336 and 384).
_TILE_PX = 448
# (short side at least, aspect ratio at most): the most generous first.
DOMAINS: Sequence[tuple[int, float]] = ((1, 4e3), (1, 200.0), (8, 100.0), (28, 50.0), (28, 20.0))
_LARGE_PX = 4000
_SHORT_SECONDS = (0.01, 0.02, 0.03, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2)
_SECONDS = (*_SHORT_SECONDS, 3, 4, 5, 6, 8, 10, 12, 15, 18, 21, 25, 30, 31)
_LONG_SECONDS = (45, 60, 90, 120, 180, 240, 300, 301, 450, 600, 600.02)
# Ladders reach beyond the corpus' longest clip by this factor in many steps, and by two more steps
# to the server's limit (VLLM_MAX_AUDIO_DECODE_DURATION_S, vllm/envs.py of 0.32), resampled.
_BEYOND = 2.0


def probe_images(area: bounds.Area) -> list[ImageShape]:
    """Return images around half cells, both pixel bounds, and the rejected aspect ratio."""
    cell, half = area.factor_px, area.factor_px // 2
    aspect = int(area.max_aspect)
    cap, floor = math.isqrt(area.max_px), math.isqrt(area.min_px)
    sizes = [
        *((1, 1), (1, 2), (half, half), (half - 1, cell), (half, 3 * cell), (cell - 1, cell + 1)),
        *((cell + half, 2 * cell + half), (3 * cell + half, 5 * cell + half + 1)),
        *((7, 7 * aspect), (7 * aspect, 7), (7, 7 * aspect + 1), (7 * aspect + 7, 7), (1, aspect)),
        *((floor, floor), (floor - 1, floor), (floor // 2, 2 * floor), (floor + 1, floor - 2)),
        *((cap, cap), (cap - 1, cap + 2), (cap + half, cap + half), (cap // 2, 2 * cap + cell)),
        *((cap // 3, 4 * cap), (round(cap * 1.7), round(cap * 0.61)), (2 * cap, cap)),
        *((640, 480), (1000, 750), (1080, 1920), (1279, 721), (3, 500), (2001, 11)),
    ]
    return _images(sizes)


def probe_layouts() -> list[ImageShape]:
    """Return an image for each tile layout that a processor may choose, and some between."""
    each = range(1, _TILES + 1)
    tiles = {(a, d) for a in each for d in each if a * d <= _TILES}
    tiles |= {(a, d) for a in (_SQUARE - 1, _SQUARE) for d in (_SQUARE - 1, _SQUARE)}
    sizes = [(a * _TILE_PX, d * _TILE_PX) for a, d in sorted(tiles)]
    between = [(640, 480), (480, 641), (1080, 1920), (333, 1111), (2222, 777), (100, 100), (37, 53)]
    return _images([*sizes, *between])


def probe_corners(side_px: int, aspect: float) -> list[ImageShape]:
    """Return the extremes of a domain: smallest and large, square, flat and tall."""
    long, thin = int(side_px * aspect), max(side_px, math.ceil(_LARGE_PX / aspect))
    sizes = [
        *((side_px, side_px), (side_px, long), (long, side_px), (side_px + 1, side_px)),
        *((thin, int(thin * aspect)), (int(thin * aspect), thin), (2 * side_px, 3 * side_px)),
    ]
    return _images(sizes)


def probe_clips(area: bounds.Area | None) -> list[VideoShape]:
    """Return clips of few, odd and many frames at several rates, sizes and both pixel bounds."""
    every = [
        *(_clip(n, 10.0, 56, 84) for n in (1, 2, 3, 4, 5, 7, 9, 31, 33)),
        _clip(8, 8.0, 64, 64),
        _clip(100, 25.0, 320, 240),
        _clip(100, 25.0, 640, 362),
        _clip(451, 30.0, 84, 56),
        _clip(451, 29.97, 98, 126),
        _clip(900, 23.976, 57, 43),
        _clip(24000, 30.0, 32, 32),
        _clip(12, 6.0, 8, 8),
        _clip(12, 6.0, 20, 300),
    ]
    if area is not None:
        cap, floor, cell = math.isqrt(area.max_px), math.isqrt(area.min_px), area.factor_px
        slim, edges = int(area.max_aspect), ((floor, floor), (floor - 3, floor), (cap // 2, cap))
        every += [
            *(_clip(2, 2.0, w, h) for w, h in ((cap, cap), (cap + cell, cap - 3), (2 * cap, cap))),
            *(_clip(4, 4.0, w, h) for w, h in (*edges, (8, 8 * slim), (8, 8 * slim + 8))),
            _clip(64, 4.0, cap // 4, cap // 4),
            _clip(33, 4.0, cap // 3, cap // 5),
        ]
    # Pixels after sampling: no known loader samples more frames than Qwen-VL's.
    pixels = (min(BY_RATE_MAX_FRAMES, c.num_frames) * c.width_px * c.height_px for c in every)
    pairs = zip(every, pixels, strict=True)
    return list(dict.fromkeys(clip for clip, px in pairs if px <= _CLIP_PX))


def probe_audio(rate_hz: int, longest_s: float) -> list[AudioShape]:
    """Return audio clips in ascending length, at the rate to which the server resamples."""
    steps = [s for s in (*_SECONDS, *_LONG_SECONDS) if s <= max(_BEYOND * longest_s, _SECONDS[-1])]
    steps += (s for s in _LONG_SECONDS[-2:] if s > steps[-1])
    return [AudioShape(max(1, round(seconds * rate_hz)), rate_hz) for seconds in (0, *steps)]


def _clip(frames: int, fps: float, width: int, height: int) -> VideoShape:
    return VideoShape(frames, fps, frames / fps, max(1, width), max(1, height))


def _images(sizes: Sequence[tuple[int, int]]) -> list[ImageShape]:
    usable = [(w, h) for w, h in sizes if w > 0 and h > 0 and w * h <= _MOST_PX]
    return [ImageShape(w, h) for w, h in dict.fromkeys(usable)]


# A timestamp in the prompt, `<12345.6 seconds>` and two special tokens: at most a token per byte.
_TIMESTAMP_TOKENS = 19


@dataclass(frozen=True, slots=True)
class ProvenRule:
    """A rule and the number of shapes that it reproduced; if `exact`, to the token."""

    rule: bounds.Rule
    compared: int
    exact: bool


# vLLM's cost of a probe or of the corpus' item, or its words if it rejects the shape.
Made = Cost | ItemCost | str
Observed = Mapping[Shape, Made]


def prove_rules(
    host: EngineHost, opened: ModelInfo, decision: Decision, progress: Progress
) -> dict[Modality, ProvenRule]:
    """Prove a rule for each served modality of the corpus; omit those without one."""
    served = [m for m in decision.table.modalities() if decision.counts[m].value]
    rules: dict[Modality, ProvenRule] = {}
    with progress.step("checking other sizes", len(served)) as task:
        for modality in served:
            try:
                proven = _Seeker(host, opened, decision, modality).seek()
            except (VllmMoved, VllmRefused):
                proven = None
            if proven is not None:
                rules[modality] = proven
            task.advance()
    return rules


@dataclass(frozen=True, slots=True)
class _Seeker:
    host: EngineHost
    opened: ModelInfo
    decision: Decision
    modality: Modality

    def seek(self) -> ProvenRule | None:
        return {"image": self._image, "video": self._video, "audio": self._audio}[self.modality]()

    def observe(self, shapes: Sequence[Shape]) -> dict[Shape, Made]:
        """Measure blanks of these shapes; those too large for this machine's memory are omitted."""
        request = Measure(self.decision.setting, tuple(map(Blank, shapes)))
        answers = self.host.measure(request, "bounding unseen shapes")
        return {
            shape: answer.cost or answer.refusal
            for shape, answer in zip(shapes, answers, strict=True)
            if answer.refused_by != "host_memory"
        }

    def _image(self) -> ProvenRule | None:
        area = self._area()
        if area is None:
            return self._ceiling()
        costs = list(self._all_costs(self.observe(probe_images(area))))
        around = max((c.tokens - c.embeds for _, c in costs if not isinstance(c, str)), default=0)
        rules = (replace(area, around_tokens=around, least_edge_px=n) for n in (0, area.factor_px))
        return next(filter(None, (_prove(rule, costs, exact=True) for rule in rules)), None)

    def _ceiling(self) -> ProvenRule | None:
        """Prove a rule for one size, or for layouts whose largest is vLLM's own and a probe's."""
        probes = self.observe(probe_layouts())
        costs = [c for _, c in self._all_costs(probes) if not isinstance(c, str)]
        sizes = {(cost.tokens, cost.embeds) for cost in costs}
        most = max((embeds for _, embeds in sizes), default=0)
        largest = self.decision.plain.max_tokens_per_item.get("image", 0)
        one_size = len(sizes) == 1
        if not one_size and not (self.opened.tiles_images and most == largest):
            return None
        for side_px, aspect in DOMAINS:
            corners = probe_corners(side_px, aspect)
            edge = self.observe(corners)
            found = [edge.get(s) for s in corners]
            if all(isinstance(cost, Cost) and cost.embeds <= most for cost in found):
                rule = bounds.Ceiling(max(tokens for tokens, _ in sizes), most, side_px, aspect)
                return _prove(rule, self._all_costs({**probes, **edge}), exact=False)
        return None

    def _video(self) -> ProvenRule | None:
        sampling = self._sampling()
        if sampling is None:
            return None
        area = self._area()
        probes = self.observe(probe_clips(area))
        for rule in self._video_candidates(sampling, area, probes):
            if proven := _prove(rule, self._all_costs(probes), exact=False):
                return proven
        return None

    def _video_candidates(
        self, sampling: bounds.Sampling, area: bounds.Area | None, probes: Observed
    ) -> Iterator[bounds.Frames]:
        if area is not None:
            yield bounds.Frames(sampling, 2, area)
            yield bounds.Frames(sampling, 2, area, whole_clip=True, step_tokens=_TIMESTAMP_TOKENS)
            return
        costs = [cost for cost in probes.values() if isinstance(cost, Cost)]
        few = min(costs, key=lambda c: c.sampled[0], default=None)
        many = max(costs, key=lambda c: c.sampled[0], default=None)
        if few is None or many is None or few.sampled[0] == many.sampled[0]:
            return
        each = (many.embeds - few.embeds) // (many.sampled[0] - few.sampled[0])
        around = few.embeds - few.sampled[0] * each
        text = max(cost.tokens - cost.embeds for cost in costs)
        yield bounds.Frames(
            sampling, 1, None, step_embeds=each, around_embeds=around, around_tokens=text
        )

    def _audio(self) -> ProvenRule | None:
        rate = self.opened.audio_rate_hz
        if rate is None:
            return None
        sounds = self.decision.table.columns_of("audio").shapes.rows
        longest = float((sounds["num_samples"] / sounds["sample_rate_hz"]).max())
        rungs, refused = list[bounds.Rung](), 0
        for shape in probe_audio(rate, longest):
            cost = self.observe([shape]).get(shape)
            if not isinstance(cost, Cost):
                if rungs:
                    break
                refused = shape.num_samples if cost else refused
                continue
            if rungs and (cost.tokens < rungs[-1].tokens or cost.embeds < rungs[-1].embeds):
                return None
            rungs.append(bounds.Rung(shape.num_samples, cost.tokens, cost.embeds))
            if cost.embeds > self.decision.budget.encoder_budget_tokens:
                break
        rule = bounds.Ladder(rate, tuple(rungs), refused)
        return _prove(rule, self._all_costs({}), exact=False) if len(rungs) > 1 else None

    def _area(self) -> bounds.Area | None:
        """Return the resizing rule with the setting's numbers."""
        for knob in self.opened.knobs:
            if isinstance(knob, AreaCap) and knob.modality == self.modality and knob.token_px:
                least, most = knob.bounds(self.decision.setting)
                return bounds.Area(math.isqrt(knob.token_px), least, most, MAX_ASPECT)
        return None

    def _sampling(self) -> bounds.Sampling | None:
        options = self.decision.setting.media_io_kwargs.get("video", {})
        loader = VIDEO_SAMPLINGS.get(options.get("video_backend", self.opened.video_loader))
        if loader is None:
            return None
        fps = options.get("fps", -1 if loader == "uniform" else VIDEO_FPS)
        return bounds.Sampling(loader, options.get("num_frames", VIDEO_FRAMES), fps)

    def _all_costs(self, probes: Observed) -> Iterator[tuple[Shape, Made]]:
        """Yield the costs of the corpus and the probes, without items whose header is wrong."""
        table = self.decision.table
        ignored = {mismatch.shape for mismatch in table.mismatches} | set(probes)
        for one in table.columns_of(self.modality):
            if one.shape not in ignored:
                yield one.shape, one
        for refusal in table.refusals:
            mine = refusal.shape.modality == self.modality and refusal.by == "vllm"
            if mine and refusal.shape not in ignored:
                yield refusal.shape, refusal.reason
        yield from probes.items()


def _prove(
    rule: bounds.Rule, costs: Iterable[tuple[Shape, Made]], *, exact: bool
) -> ProvenRule | None:
    """Return the rule if it agrees with all costs."""
    compared = 0
    for shape, cost in costs:
        if not _agrees(rule, shape, cost, exact=exact):
            return None
        compared += 1
    return ProvenRule(rule, compared, exact) if compared else None


def _agrees(rule: bounds.Rule, shape: Shape, cost: Made, *, exact: bool) -> bool:
    bound = rule.bound(shape)
    if isinstance(cost, str):
        # The rule must not admit a shape that vLLM rejects.
        return not isinstance(bound, bounds.Bound)
    if bound is None:
        return True
    if isinstance(bound, bounds.ServerRefusal):
        return False
    if exact:
        return (bound.tokens, bound.embeds) == (cost.tokens, cost.embeds)
    if isinstance(rule, bounds.Frames):
        # It must give the exact cost of the frames that were really sampled.
        frames, width, height = cost.sampled
        embeds = rule.embeds(frames, width, height)
        if embeds != cost.embeds or cost.tokens > embeds + rule.tokens_around(frames):
            return False
    inside = bound.least_embeds <= cost.embeds <= bound.embeds
    return inside and bound.least_tokens <= cost.tokens <= bound.tokens


# Shapes with a path, per modality: a report shows this number of images.
_EXEMPLARS = 12
# Shapes to list if an exact rule gives the cost of all others: the costliest, for people.
_LISTED = 1_000
# Shapes to list if a rule only bounds the others. A line has 290 bytes.
_BOUNDED = 20_000
# Counted request texts: the limit of a list in a calibration.
_COUNTED = 20_000


def list_costs(
    decision: Decision,
    policy: Policy,
    rules: Mapping[Modality, ProvenRule],
    texts: Texts,
    *,
    encoder_decoder: bool = False,
) -> c.Costs:
    """Return costs, refusals, rules and texts; with a rule, a long list has only the costliest."""
    table = decision.table
    wrong = {mismatch.shape: mismatch for mismatch in table.mismatches}
    refused = [*table.refusals, *decision.default_table.refusals]
    reasons = {r.shape: r.reason for r in reversed(refused) if r.shape not in table.costs}
    modalities = {}
    for modality in decision.counts:
        proven = rules.get(modality)
        every = table.columns_of(modality)
        is_listed = np.ones(len(every), dtype=bool)
        if proven is not None and len(every) > (_LISTED if proven.exact else _BOUNDED):
            # The proven rule gives or bounds the costs of the others.
            is_listed[np.argsort(-every.tokens, kind="stable")[_LISTED:]] = False
            rows = every.shapes.positions(list(wrong))
            is_listed[rows[rows >= 0]] = True
        listed, rest = every.take(is_listed), every.take(~is_listed)
        most = heapq.nlargest(_EXEMPLARS, listed, key=lambda cost: cost.tokens)
        paths = {cost.shape: cost.exemplar for cost in most}
        entries = [_known_cost(e, wrong.get(e.shape), paths.get(e.shape, "")) for e in listed]
        rejected = [(shape, why) for shape, why in reasons.items() if shape.modality == modality]
        if not entries and not rejected:
            continue
        unlisted = c.Unlisted(tokens=c.bin_by_tokens(rest), sizes=c.bin_by_size(rest))
        modalities[str(modality)] = c.ModalityCosts(
            known=entries,
            refused=rejected,
            rule=proven.rule if proven else None,
            compared=proven.compared if proven else 0,
            unlisted=unlisted if rest else None,
        )
    return c.Costs(
        text_reserve_tokens=policy.text_reserve_tokens,
        modalities=modalities,
        text=texts.bound,
        counted=sorted(texts.measured.items())[:_COUNTED] if texts.bound.compared else [],
        counting=texts.counting,
        uncounted=texts.uncounted,
        grammar=texts.grammar,
        encoder_decoder=encoder_decoder,
    )


def _known_cost(cost: ItemCost, mismatch: Mismatch | None, exemplar: str) -> c.KnownCost:
    """Return the higher cost if a real item and its blank differ: others may cost either."""
    more = max(0, mismatch.blank_tokens - mismatch.real_tokens) if mismatch else 0
    return c.KnownCost(
        shape=cost.shape,
        tokens=cost.tokens + more,
        embeds=cost.embeds + more,
        basis="blank" if cost.basis == "unchanged" else cost.basis,
        items=cost.count,
        exemplar=exemplar,
    )
