"""The costs of the calibrated setting, as the calibration keeps them for `mmcalib check`."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np

from mmcalib.derive.costs import CostColumns, Mismatch
from mmcalib.derive.distribution import size_cells, token_bins
from mmcalib.derive.item_cost import ItemCost
from mmcalib.derive.policy import Policy
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.domain.text_bound import TextBound
from mmcalib.results import costs as c
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.texts import Texts
from mmcalib.workflows.gate.rules import ProvenRule

# Shapes of which a path is kept, per modality: as many as a report shows pictures of.
_EXEMPLARS = 12
# Shapes that are listed where a rule says what all others cost: the costliest, for people.
_LISTED = 1_000
# Shapes that are all listed where it only bounds what they cost. A line has 290 bytes.
_BOUNDED = 20_000
# Requests whose text was counted: what a list in a calibration may hold.
_COUNTED = 20_000


def costs(
    decision: Decision,
    policy: Policy,
    rules: Mapping[Modality, ProvenRule],
    texts: Texts | None = None,
    *,
    encoder_decoder: bool = False,
) -> c.Costs:
    """Every measured and every refused shape, and the rules that bound all others, and texts. Of
    many shapes whose cost a rule says to the token, and of very many that it bounds, the costliest
    stand for people.
    """
    table = decision.table
    odd = {mismatch.shape: mismatch for mismatch in table.mismatches}
    refused = [*table.refusals, *decision.default_table.refusals]
    reasons = {r.shape: r.reason for r in reversed(refused) if r.shape not in table.costs}
    modalities = {}
    for modality in decision.counts:
        proven = rules.get(modality)
        mine, said = _listed(table.of(modality), odd, proven)
        most = heapq.nlargest(_EXEMPLARS, mine, key=lambda cost: cost.tokens)
        named = {cost.shape: cost.exemplar for cost in most}
        known = [_known(cost, odd.get(cost.shape), named.get(cost.shape, "")) for cost in mine]
        no = {shape: why for shape, why in reasons.items() if shape.modality == modality}
        if not known and not no:
            continue
        modalities[str(modality)] = c.ModalityCosts(
            known=known,
            refused=[c.RefusedShape(shape=s, reason=why) for s, why in no.items()],
            rule=proven.rule if proven else None,
            compared=proven.compared if proven else 0,
            unlisted=_summary(said) if said else None,
        )
    return c.Costs(
        text_reserve_tokens=policy.text_reserve_tokens,
        modalities=modalities,
        text=_text(texts.bound, texts.measured) if texts else None,
        counting=texts.counting if texts else None,
        uncounted=texts.uncounted if texts else "",
        encoder_decoder=encoder_decoder,
    )


def _listed(
    every: CostColumns, odd: Mapping[Shape, Mismatch], proven: ProvenRule | None
) -> tuple[CostColumns, CostColumns]:
    """Those that have an entry, and those that have none: the rule was held against each and says,
    or bounds, what it costs.
    """
    listed = np.ones(len(every), dtype=bool)
    if proven is not None and len(every) > (_LISTED if proven.exact else _BOUNDED):
        listed[np.argsort(-every.tokens, kind="stable")[_LISTED:]] = False
        rows = every.shapes.places(list(odd))
        listed[rows[rows >= 0]] = True
    return every.take(listed), every.take(~listed)


def _summary(costs: CostColumns) -> c.Unlisted:
    return c.Unlisted(
        shapes=len(costs),
        items=costs.items(),
        tokens=[c.TokensBetween.showing(found) for found in token_bins(costs)],
        sizes=[c.SizesAbout.showing(found) for found in size_cells(costs)],
    )


def _text(bound: TextBound | None, counted: Mapping[str, int]) -> c.TextCost | None:
    if bound is None or not bound.compared:
        return None
    return c.TextCost(
        base_tokens=bound.base_tokens,
        message_tokens=bound.message_tokens,
        item_tokens=bound.item_tokens,
        tools_tokens=bound.tools_tokens,
        tokens_per_byte=bound.tokens_per_byte,
        compared=bound.compared,
        counted=[
            c.CountedText(digest=digest, tokens=tokens)
            for digest, tokens in sorted(counted.items())[:_COUNTED]
        ],
    )


def _known(cost: ItemCost, odd: Mismatch | None, exemplar: str) -> c.KnownCost:
    """Where one real item and its stand-in differ, others of the shape may cost either."""
    more = max(0, odd.blank_tokens - odd.real_tokens) if odd else 0
    return c.KnownCost(
        shape=cost.shape,
        tokens=cost.tokens + more,
        embeds=cost.embeds + more,
        basis="blank" if cost.basis == "unchanged" else cost.basis,
        items=cost.count,
        exemplar=exemplar,
    )
