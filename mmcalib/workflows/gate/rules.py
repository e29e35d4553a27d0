"""Finding, for each modality, a rule that bounds what unseen shapes cost, and proving it.

A rule is built from numbers of the model's processor and loader, and kept only if it reproduces
what vLLM made of every measured shape: those of the corpus, and probes at the rule's own edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mmcalib.derive.bounds import (
    Area,
    Bound,
    Ceiling,
    Frames,
    Ladder,
    Refused,
    Rule,
    Rung,
    Sampling,
)
from mmcalib.domain.area_cap import AreaCap
from mmcalib.domain.cost import Cost
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, Measure
from mmcalib.errors import VllmMoved, VllmRefused
from mmcalib.progress import Progress
from mmcalib.releases.constants import (
    QWEN_MOST_ASPECT,
    VIDEO_FPS,
    VIDEO_FRAMES,
    VIDEO_SAMPLINGS,
)
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.gate import probes

# A timestamp in the prompt, `<12345.6 seconds>` between two special tokens: a byte or more each.
_TIMESTAMP_TOKENS = 19


@dataclass(frozen=True, slots=True)
class ProvenRule:
    """A rule and the number of shapes that it reproduced, to the token where it is `exact`."""

    rule: Rule
    compared: int
    exact: bool


# What vLLM made of a shape, or its words where it refused.
Made = Cost | str
Observed = Mapping[Shape, Made]


def prove_rules(
    host: EngineHost, opened: ModelInfo, decision: Decision, progress: Progress
) -> dict[Modality, ProvenRule]:
    """The proven rule of each modality that is served and that the corpus has; none is no error."""
    served = [m for m in decision.table.modalities() if decision.counts[m].value]
    found: dict[Modality, ProvenRule] = {}
    with progress.step("bounding unseen shapes", len(served)) as task:
        for modality in served:
            seeker = _Seeker(host, opened, decision, modality)
            try:
                proven = seeker.seek()
            except (VllmMoved, VllmRefused):
                proven = None
            if proven is not None:
                found[modality] = proven
            task.advance()
    return found


@dataclass(frozen=True, slots=True)
class _Seeker:
    host: EngineHost
    opened: ModelInfo
    decision: Decision
    modality: Modality

    def seek(self) -> ProvenRule | None:
        match self.modality:
            case "image":
                return self._image()
            case "video":
                return self._video()
            case "audio":
                return self._audio()

    @property
    def setting(self) -> Setting:
        return self.decision.setting

    def observe(self, shapes: Sequence[Shape]) -> dict[Shape, Made]:
        """Blank items of these shapes. What only this machine's memory forbids is left out."""
        subjects = tuple(Blank(shape) for shape in shapes)
        answers = self.host.measure(Measure(self.setting, subjects), "bounding unseen shapes")
        return {
            shape: answer.cost or answer.refusal
            for shape, answer in zip(shapes, answers, strict=True)
            if answer.refused_by != "host_memory"
        }

    def _image(self) -> ProvenRule | None:
        area = self._area()
        if area is not None:
            probed = self.observe(probes.pictures(area))
            seen = (c.tokens - c.embeds for _, c in self._seen(probed) if isinstance(c, Cost))
            rule = replace(area, around_tokens=max(seen, default=0))
            return _kept(rule, self._seen(probed), exact=True)
        return self._ceiling()

    def _ceiling(self) -> ProvenRule | None:
        """For processors with one size, or with a list of layouts whose largest vLLM itself names
        and one of the probes has.
        """
        tried = self.observe(probes.layouts())
        sizes = {(c.tokens, c.embeds) for _, c in self._seen(tried) if isinstance(c, Cost)}
        most = max((embeds for _, embeds in sizes), default=0)
        largest = self.decision.unhinted.max_tokens_per_item.get("image", 0)
        one_size = len(sizes) == 1
        if not one_size and not (self.opened.tiles_images and most == largest):
            return None
        for side_px, aspect in probes.DOMAINS:
            corners = probes.corners(side_px, aspect)
            edge = self.observe(corners)
            seen = [edge.get(s) for s in corners]
            if all(isinstance(cost, Cost) and cost.embeds <= most for cost in seen):
                rule = Ceiling(max(tokens for tokens, _ in sizes), most, side_px, aspect)
                return _kept(rule, self._seen({**tried, **edge}), exact=False)
        return None

    def _video(self) -> ProvenRule | None:
        sampling = self._sampling()
        if sampling is None:
            return None
        area = self._area()
        seen = self.observe(probes.clips(area))
        for rule in self._video_candidates(sampling, area, seen):
            if proven := _kept(rule, self._seen(seen), exact=False):
                return proven
        return None

    def _video_candidates(
        self, sampling: Sampling, area: Area | None, seen: Observed
    ) -> Iterator[Frames]:
        if area is not None:
            yield Frames(sampling, 2, area)
            yield Frames(sampling, 2, area, whole_clip=True, step_tokens=_TIMESTAMP_TOKENS)
            return
        costs = [cost for cost in seen.values() if isinstance(cost, Cost)]
        few = min(costs, key=lambda c: c.sampled[0], default=None)
        many = max(costs, key=lambda c: c.sampled[0], default=None)
        if few is None or many is None or few.sampled[0] == many.sampled[0]:
            return
        each = (many.embeds - few.embeds) // (many.sampled[0] - few.sampled[0])
        around = few.embeds - few.sampled[0] * each
        beside = max(cost.tokens - cost.embeds for cost in costs)
        yield Frames(
            sampling, 1, None, step_embeds=each, around_embeds=around, around_tokens=beside
        )

    def _audio(self) -> ProvenRule | None:
        rate = self.opened.audio_rate_hz
        if rate is None:
            return None
        sounds = self.decision.table.of("audio").shapes.columns
        longest = float((sounds["num_samples"] / sounds["sample_rate_hz"]).max())
        rungs: list[Rung] = []
        for shape in probes.sounds(rate, longest):
            cost = self.observe([shape]).get(shape)
            if not isinstance(cost, Cost):
                if rungs:
                    break
                continue
            if rungs and (cost.tokens < rungs[-1].tokens or cost.embeds < rungs[-1].embeds):
                return None
            rungs.append(Rung(shape.num_samples, cost.tokens, cost.embeds))
            if cost.embeds > self.decision.budget.encoder_budget_tokens:
                break
        rule = Ladder(rate, tuple(rungs))
        return _kept(rule, self._seen({}), exact=False) if len(rungs) > 1 else None

    def _area(self) -> Area | None:
        """The resizing rule with the numbers that the setting gives it."""
        for knob in self.opened.knobs:
            if isinstance(knob, AreaCap) and knob.modality == self.modality and knob.token_px:
                least, most = knob.bounds(self.setting)
                return Area(math.isqrt(knob.token_px), least, most, QWEN_MOST_ASPECT)
        return None

    def _sampling(self) -> Sampling | None:
        options = self.setting.media_io_kwargs.get("video", {})
        loader = VIDEO_SAMPLINGS.get(options.get("video_backend", self.opened.video_loader))
        if loader is None:
            return None
        fps = options.get("fps", -1 if loader == "uniform" else VIDEO_FPS)
        frames = options.get("num_frames", VIDEO_FRAMES)
        return Sampling(loader, frames, fps)

    def _seen(self, probed: Observed) -> Iterator[tuple[Shape, Made]]:
        """The corpus and the probes; items that are not what their header says prove nothing."""
        table = self.decision.table
        passed = {mismatch.shape for mismatch in table.mismatches} | set(probed)
        for one in table.of(self.modality):
            if one.shape not in passed:
                seconds = one.process_s
                yield (
                    one.shape,
                    Cost(one.tokens, one.embeds, one.tensor_bytes, 0.0, seconds, one.sampled),
                )
        for refusal in table.refusals:
            mine = refusal.shape.modality == self.modality and refusal.by == "vllm"
            if mine and refusal.shape not in passed:
                yield refusal.shape, refusal.reason
        yield from probed.items()


def _kept(rule: Rule, seen: Iterable[tuple[Shape, Made]], *, exact: bool) -> ProvenRule | None:
    """The rule, if everything that was seen is as it says."""
    compared = 0
    for shape, found in seen:
        if not _agrees(rule, shape, found, exact=exact):
            return None
        compared += 1
    return ProvenRule(rule, compared, exact) if compared else None


def _agrees(rule: Rule, shape: Shape, found: Made, *, exact: bool) -> bool:
    bound = rule.bound(shape)
    if isinstance(found, str):
        # What vLLM refuses must not look admissible.
        return not isinstance(bound, Bound)
    if bound is None:
        return True
    if isinstance(bound, Refused):
        return False
    if exact:
        return (bound.tokens, bound.embeds) == (found.tokens, found.embeds)
    if isinstance(rule, Frames) and not _as_sampled(rule, found):
        return False
    inside = bound.least_embeds <= found.embeds <= bound.embeds
    return inside and bound.least_tokens <= found.tokens <= bound.tokens


def _as_sampled(rule: Frames, found: Cost) -> bool:
    """Whether the frames that were really kept cost what the rule says, to the token."""
    frames, width, height = found.sampled
    embeds = rule.embeds(frames, width, height)
    return embeds == found.embeds and found.tokens <= embeds + rule.beside(frames)
