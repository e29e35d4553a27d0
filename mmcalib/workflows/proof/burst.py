"""Which prompts to replay: the corpus' own heaviest, enough of them to fill one encoder step; the
others are only to be admitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mmcalib.census.prompts import PromptCensus, PromptCount
from mmcalib.corpus.content_parts import PART_OF, text_part, url_part
from mmcalib.derive.costs import CostTable
from mmcalib.derive.item_cost import ItemCost
from mmcalib.derive.limits import Count
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import ReplayPrompt
from mmcalib.locations.location import url_of

# The modality of each item, in order of modality.
Kind = tuple[Modality, ...]

# Without requests: so many of a modality's heaviest items are enough to fill a step.
_TOP = 16
# Kinds of prompts of which the heaviest is only admitted; each costs what its media cost to load.
_ADMITTED = 256


@dataclass(frozen=True, slots=True)
class Burst:
    """Prompts to submit at once; the items of each take as many `embeds` of the encoder cache.

    `too_heavy` counts prompts left out because each alone exceeds the time budget. `fills_step`:
    whether the burst holds as much as one step may encode, or no more can be had. Prompts of
    `admit` are not answered, `unseen` others of the same kinds are not even admitted. The last
    `made_up` prompts are of no one's. So many were left out as `unreadable`.
    """

    prompts: tuple[ReplayPrompt, ...]
    embeds: tuple[int, ...]
    too_heavy: int
    fills_step: bool
    admit: tuple[ReplayPrompt, ...] = ()
    unseen: int = 0
    made_up: int = 0
    unreadable: int = 0

    @property
    def encoder_tokens(self) -> int:
        """What all of them take."""
        return sum(self.embeds)


def burst(
    prompts: PromptCensus,
    table: CostTable,
    counts: Mapping[Modality, Count],
    step_tokens: int,
    affordable_tokens: float,
) -> Burst:
    """The heaviest covered prompts first, until they hold at least what one step may encode and
    each modality is among them, within `affordable_tokens` in sum. Of the others the heaviest of
    each kind, by the modalities of its items and the fields beside the messages, is admitted.
    """
    candidates = list(_candidates(prompts, table, counts))
    chosen: list[tuple[ReplayPrompt, int]] = []
    tokens = 0
    missing = set(table.modalities())
    others = 0
    admit: dict[tuple[Kind, tuple[str, ...]], ReplayPrompt] = {}
    for prompt, embeds, kind in candidates:
        wanted = prompt.messages and (tokens < step_tokens or missing & set(kind))
        if wanted and tokens + embeds <= affordable_tokens:
            chosen.append((prompt, embeds))
            tokens += embeds
            missing -= set(kind)
            continue
        others += 1
        if prompt.messages and len(admit) < _ADMITTED:
            admit.setdefault((kind, tuple(sorted(prompt.fields))), prompt)
    return Burst(
        prompts=tuple(prompt for prompt, _ in chosen),
        embeds=tuple(embeds for _, embeds in chosen),
        too_heavy=sum(embeds > affordable_tokens for _, embeds, _ in candidates),
        fills_step=tokens >= step_tokens,
        admit=tuple(admit.values()),
        unseen=others - len(admit),
    )


def _candidates(
    prompts: PromptCensus, table: CostTable, counts: Mapping[Modality, Count]
) -> Iterator[tuple[ReplayPrompt, int, Kind]]:
    """Covered prompts by weight; made-up ones of the heaviest items where there are no requests."""
    asked = [c for c in (_of_request(e, table, counts) for e in prompts.signatures()) if c]
    if not asked:
        asked = [_of_item(cost) for m in table.modalities() for cost in _top(table, m)]
    else:
        # Files that no request mentions are served too: the heaviest must get through.
        named = {s for e in prompts.signatures() for s in e.signature.shapes}
        largest = [table.heaviest(m) for m in table.modalities() if counts[m].value]
        asked += [_of_item(cost) for cost in largest if cost and cost.shape not in named]
    yield from sorted(asked, key=lambda candidate: (-candidate[1], candidate[0].origin))


def _top(table: CostTable, modality: Modality) -> list[ItemCost]:
    costs = table.of(modality)
    return [costs[int(row)] for row in np.argsort(-costs.embeds, kind="stable")[:_TOP]]


def _of_request(
    entry: PromptCount, table: CostTable, counts: Mapping[Modality, Count]
) -> tuple[ReplayPrompt, int, Kind] | None:
    shapes = entry.signature.shapes
    if not shapes or any(shape not in table.costs for shape in shapes):
        return None
    kind = tuple(sorted(shape.modality for shape in shapes))
    if any(entry.signature.items(m) > counts[m].value for m in kind):
        return None
    costs = [table.costs[shape] for shape in shapes]
    prompt = ReplayPrompt(
        origin=entry.exemplar.origin,
        messages=entry.exemplar.messages,
        item_tokens=tuple(sorted(cost.tokens for cost in costs)),
        fields=entry.exemplar.fields,
    )
    return prompt, sum(cost.embeds for cost in costs), kind


def _of_item(cost: ItemCost) -> tuple[ReplayPrompt, int, Kind]:
    return prompt_of(cost), cost.embeds, (cost.shape.modality,)


def prompt_of(cost: ItemCost) -> ReplayPrompt:
    """A request for this one item."""
    kind = PART_OF[cost.shape.modality]
    content = [text_part("Describe this."), url_part(kind, url_of(cost.exemplar))]
    return ReplayPrompt(
        origin=cost.exemplar,
        messages=[{"role": "user", "content": content}],
        item_tokens=(cost.tokens,),
    )
