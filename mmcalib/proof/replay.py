"""Replays the heaviest prompts, enough to fill one encoder step, and admits the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from mmcalib.census.prompts import PromptCensus, PromptCount
from mmcalib.checks.engine import ReplayBurst
from mmcalib.checks.facts import JudgedConfig
from mmcalib.corpus.chat import PART_OF, ChatRequest, text_part, url_part
from mmcalib.decision.media_files import Files, prepare_files, prepare_requests
from mmcalib.domain.items import Skipped
from mmcalib.domain.memory import EngineStarted
from mmcalib.domain.shapes import Modality
from mmcalib.domain.traffic import BurstResult
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Replay, ReplayPrompt
from mmcalib.limits.costs import ItemCost
from mmcalib.media.blank import write_blank
from mmcalib.progress import Progress
from mmcalib.storage.location import url_of

# The modality of each item, in order of modality.
Kind = tuple[Modality, ...]

# Without requests, this many of a modality's heaviest items fill a step.
_TOP = 16
# Most kinds of prompts to admit. Each one loads its media.
_ADMITTED = 256


@dataclass(frozen=True, slots=True)
class Burst(ReplayBurst):
    """The prompts that this module chooses."""

    prompts: tuple[ReplayPrompt, ...]
    admit: tuple[ReplayPrompt, ...] = ()

    @property
    def encoder_tokens(self) -> int:
        return sum(prompt.embeds for prompt in self.prompts)


def choose_heaviest(
    prompts: PromptCensus, decision: JudgedConfig, step_tokens: int, affordable_tokens: float
) -> Burst:
    """Choose the heaviest prompts, up to `affordable_tokens`, to fill one step with all modalities.
    Of the others, vLLM only admits the heaviest of each kind: modalities of items, request fields.
    """
    table, candidates = decision.table, list(_candidates(prompts, decision))
    chosen: list[ReplayPrompt] = []
    tokens = 0
    missing = set(table.modalities())
    sizes = () if prompts.prompts() else map(len, map(table.columns_of, table.modalities()))
    others = sum(max(0, count - _TOP) for count in sizes)
    admit: dict[tuple[Kind, tuple[str, ...]], ReplayPrompt] = {}
    for prompt, kind in candidates:
        wanted = prompt.request.messages and (tokens < step_tokens or missing & set(kind))
        if wanted and tokens + prompt.embeds <= affordable_tokens:
            chosen.append(prompt)
            tokens += prompt.embeds
            missing -= set(kind)
            continue
        others += 1
        if prompt.request.messages and len(admit) < _ADMITTED:
            admit.setdefault((kind, tuple(sorted(prompt.request.fields))), prompt)
    return Burst(
        prompts=tuple(chosen),
        too_heavy=sum(prompt.embeds > affordable_tokens for prompt, _ in candidates),
        fills_step=tokens >= step_tokens,
        admit=tuple(admit.values()),
        unseen=others - len(admit),
    )


def _candidates(
    prompts: PromptCensus, decision: JudgedConfig
) -> Iterator[tuple[ReplayPrompt, Kind]]:
    """Covered prompts by weight; without requests, synthetic ones of the heaviest items."""
    table, every = decision.table, (_of_request(e, decision) for e in prompts.signatures())
    asked = [candidate for candidate in every if candidate]
    if not asked:
        for costs in map(table.columns_of, table.modalities()):
            top = np.argsort(-costs.embeds, kind="stable")[:_TOP]
            asked += [_of_item(costs[int(row)]) for row in top]
    else:
        # Files that no request mentions are served too, so the heaviest must pass.
        named = {s for e in prompts.signatures() for s in e.signature.shapes}
        largest = [table.heaviest(m) for m in table.modalities() if decision.counts[m].value]
        asked += [_of_item(cost) for cost in largest if cost and cost.shape not in named]
    yield from sorted(asked, key=lambda candidate: (-candidate[0].embeds, candidate[0].origin))


def _of_request(entry: PromptCount, decision: JudgedConfig) -> tuple[ReplayPrompt, Kind] | None:
    shapes, known = entry.signature.shapes, decision.table.costs
    fits = entry.signature.fits(decision.items_per_prompt)
    if not (shapes and fits) or any(shape not in known for shape in shapes):
        return None
    kind = tuple(sorted(shape.modality for shape in shapes))
    costs = [known[shape] for shape in shapes]
    prompt = ReplayPrompt(
        origin=entry.exemplar.origin,
        request=entry.exemplar.request,
        item_tokens=tuple(sorted(cost.tokens for cost in costs)),
        embeds=sum(cost.embeds for cost in costs),
    )
    return prompt, kind


def _of_item(cost: ItemCost) -> tuple[ReplayPrompt, Kind]:
    return item_prompt(cost), (cost.shape.modality,)


def item_prompt(cost: ItemCost) -> ReplayPrompt:
    kind = PART_OF[cost.shape.modality]
    parts = [text_part("Describe this."), url_part(kind, url_of(cost.exemplar))]
    return ReplayPrompt(cost.exemplar, ChatRequest.of_user(parts), (cost.tokens,), cost.embeds)


# Most files to write. A step of more small items proves little.
_MOST: Final = 64
# Most frames of a video. Longer ones take longer to write than to encode.
_MOST_FRAMES: Final = 300


def pad_burst(
    chosen: Burst, decision: JudgedConfig, step_tokens: int, affordable_tokens: float, folder: Path
) -> Burst:
    """Add blank items, costliest first, to fill one step within `affordable_tokens`."""
    tokens, smallest = chosen.encoder_tokens, 0
    made: list[ReplayPrompt] = []
    for cost in _copyable(decision):
        smallest = cost.embeds
        while tokens + cost.embeds <= min(step_tokens, affordable_tokens) and len(made) < _MOST:
            folder.mkdir(parents=True, exist_ok=True)
            path = write_blank(cost.shape, len(made), folder)
            made.append(item_prompt(replace(cost, exemplar=str(path))))
            tokens += cost.embeds
    return replace(
        chosen,
        prompts=(*chosen.prompts, *made),
        # vLLM splits no item between steps, so a rest smaller than any item stays empty.
        fills_step=tokens + smallest > step_tokens or not (smallest or chosen.admit),
        made_up=len(made),
    )


def _copyable(decision: JudgedConfig) -> list[ItemCost]:
    """One item of each size that can be written and whose blank costs the same."""
    table, by_size = decision.table, dict[int, ItemCost]()
    for modality in table.modalities():
        if decision.counts[modality].value:
            costs = table.columns_of(modality)
            if modality == "video":
                columns = costs.shapes.rows
                even = (columns["width_px"] | columns["height_px"]) % 2 == 0
                short = (columns["fps"] > 0) & (columns["num_frames"] <= _MOST_FRAMES)
                costs = costs.take(even & short)
            costs = costs.replace_costs({mismatch.shape: None for mismatch in table.mismatches})
            _, first = np.unique(costs.embeds, return_index=True)
            by_size |= {cost.embeds: cost for cost in costs.take(np.sort(first))}
    return [by_size[embeds] for embeds in sorted(by_size, reverse=True)]


# Most time per token of the language model in a replay, as a share of the encoder's.
_ANSWER_SHARE = 1.5


def choose_burst(
    prompts: PromptCensus,
    decision: JudgedConfig,
    figures: EngineStarted,
    within_s: float,
    scratch: Path,
    files: Files = prepare_files,
) -> Burst:
    """Choose prompts that take about `within_s` and fit in memory; `scratch` gets blank items."""
    profiled = decision.adequacy.profiled_tokens
    rate = figures.encoder_seconds_per_token
    spent = figures.profile_estimate_s if figures.profile_s is None else figures.profile_s
    if spent and profiled:
        rate = spent / profiled
    affordable = within_s / (rate * (1 + _ANSWER_SHARE)) if rate else float("inf")
    if figures.most_step_tokens is not None:
        affordable = min(affordable, figures.most_step_tokens)
    step = figures.budget_tokens
    chosen = attach_files(choose_heaviest(prompts, decision, step, affordable), files)
    return pad_burst(chosen, decision, step, affordable, scratch / "made-up")


def replay(host: EngineHost, chosen: Burst, progress: Progress) -> BurstResult:
    """Submit the burst and wait for all answers."""
    if not chosen.prompts and not chosen.admit:
        return BurstResult((), 0.0, 0)
    with progress.step(f"replaying {len(chosen.prompts) + len(chosen.admit)} prompts"):
        return host.ask(Replay(chosen.prompts, chosen.admit), "replaying prompts")


def attach_files(chosen: Burst, files: Files) -> Burst:
    """The burst with files for all media, without prompts whose media cannot be decoded."""
    every = [_with_files(prompts, files) for prompts in (chosen.prompts, chosen.admit)]
    prompts, admit = (tuple(one for one in found if one is not None) for found in every)
    unreadable = sum(found.count(None) for found in every)
    return replace(chosen, prompts=prompts, admit=admit, unreadable=unreadable)


def _with_files(prompts: Sequence[ReplayPrompt], files: Files) -> list[ReplayPrompt | None]:
    found = prepare_requests([prompt.request for prompt in prompts], files)
    return [
        None if isinstance(request, Skipped) else replace(prompt, request=request)
        for prompt, request in zip(prompts, found, strict=True)
    ]


def leave_out_exhausting(chosen: Burst, replayed: BurstResult) -> tuple[Burst, BurstResult]:
    """Count prompts that ran out of memory here as too heavy, not as rejected."""
    out = {one.origin for one in replayed.outcomes if one.out_of_memory}
    burst = replace(
        chosen,
        prompts=tuple(p for p in chosen.prompts if p.origin not in out),
        admit=tuple(p for p in chosen.admit if p.origin not in out),
        too_heavy=chosen.too_heavy + len(out),
    )
    kept = replace(
        replayed,
        answers=tuple(a for a in replayed.answers if a.origin not in out),
        admitted=tuple(a for a in replayed.admitted if a.origin not in out),
    )
    return burst, kept


def mismatched_prompts(chosen: Burst, replayed: BurstResult) -> list[str]:
    """Prompts whose token counts differ from the measured ones."""
    measured = {prompt.origin: prompt.item_tokens for prompt in (*chosen.prompts, *chosen.admit)}
    return [
        f"{answer.origin}: measured {measured[answer.origin]}, engine {answer.item_tokens}"
        for answer in replayed.outcomes
        if not answer.error and tuple(sorted(answer.item_tokens)) != measured[answer.origin]
    ]
