"""What a reader of the report may try, from the grid, its memory and the requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from mmcalib.derive.frontier import tokens_of
from mmcalib.derive.item_cost import ItemCost
from mmcalib.domain.setting import DEFAULT, Setting
from mmcalib.domain.shapes import Shape
from mmcalib.result.what_if import WhatIf, WhatIfGroup, WhatIfPool, WhatIfRejected, WhatIfState
from mmcalib.workflows.calibration.decided import Decided
from mmcalib.workflows.corpus_facts import requests_over
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.grid import Group, State
from mmcalib.workflows.decision.held import chosen_value, together
from mmcalib.workflows.decision.long_requests import shapes_of, turned_away
from mmcalib.workflows.memory.grid_pools import GridPool


def what_if(decided: Decided, pools: Sequence[GridPool], base: Setting, reserve: int) -> WhatIf:
    """`base` is what the policy says of loaders, `reserve` stands for answers."""
    decision, grid, corpus = decided.decision, decided.grid, decided.served.corpus
    requests = corpus.prompts.prompts() or corpus.census.items()
    return WhatIf(
        groups=[_group(group, decision) for group in grid.groups],
        contexts=list(grid.contexts),
        requests=requests,
        limit_mm_per_prompt={m: count.value for m, count in decision.counts.items()},
        setting=base.engine_args,
        pools=[_pool(one) for one in pools],
        rejected=None if decided.long is None else list(_rejected(decided, reserve)),
    )


def _group(group: Group, decision: Decision) -> WhatIfGroup:
    return WhatIfGroup(
        modalities=list(group.modalities),
        items=sum(decision.default_table.of(m).items() for m in group.modalities),
        chosen={knob.name: chosen_value(decision, knob) for knob in group.knobs},
        states=[_state(state, group, decision) for state in group.states],
    )


def _state(state: State, group: Group, decision: Decision) -> WhatIfState:
    values = (
        (knob, state.values.get(knob.name, chosen_value(decision, knob))) for knob in group.knobs
    )
    point = state.turned.point if state.turned else None
    return WhatIfState(
        knob=point.knob.name if point else None,
        value=point.value if point else None,
        setting=together(values, DEFAULT).engine_args,
        items_downscaled=point.items_downscaled if point else _downscaled(group, decision),
        budget_of=state.budget_of,
    )


def _downscaled(group: Group, decision: Decision) -> int:
    found = 0
    for modality in group.modalities:
        before = decision.default_table.of(modality)
        now = tokens_of(decision.table.of(modality), before)
        found += int(before.counts[now < before.tokens].sum())
    return found


def _pool(found: GridPool) -> WhatIfPool:
    one, concurrency = found.combination, found.max_concurrency
    return WhatIfPool(
        places=list(one.places),
        max_model_len=one.max_model_len,
        max_num_batched_tokens=one.budget.max_num_batched_tokens,
        kv_cache_bytes=found.pool.nbytes,
        off_bytes=found.pool.off_bytes,
        kv_cache_tokens=found.kv_cache_tokens,
        max_concurrency=None if concurrency is None else round(concurrency, 2),
        label="rehearsed" if found.rehearsed else "computed",
    )


def _rejected(decided: Decided, reserve: int) -> Iterator[WhatIfRejected]:
    grid, requests, decision = decided.grid, decided.long or (), decided.decision
    budgets = {(c.places, c.max_model_len): c.budget for c in grid.combinations}
    over = requests_over(decided.served.corpus.prompts, decision.counts)
    for places in product(*(range(len(group.states)) for group in grid.groups)):
        costs = _costs(decided, places)
        like = tuple(g.states[p].budget_of for g, p in zip(grid.groups, places, strict=True))
        for context in grid.contexts:
            budget = budgets.get((like, context))
            if budget is None:
                continue
            count = (over.requests if over else 0) + turned_away(
                requests,
                costs,
                budget,
                decided.served.texts,
                reserve,
                encoder_decoder=decided.served.opened.encoder_decoder,
            )
            if count:
                yield WhatIfRejected(places=list(places), max_model_len=context, requests=count)


def _costs(decided: Decided, places: Sequence[int]) -> Mapping[Shape, ItemCost]:
    """Of the items of long requests."""
    table = decided.decision.table.costs
    costs = {shape: table[shape] for shape in shapes_of(decided.long) if shape in table}
    for group, place in zip(decided.grid.groups, places, strict=True):
        if (turned := group.states[place].turned) is None:
            continue
        moved = {turned.point.knob.modality, *turned.point.knob.bleeds}
        costs = {shape: cost for shape, cost in costs.items() if shape.modality not in moved}
        costs |= {shape: cost for shape, cost in turned.costs.items() if shape.modality in moved}
    return costs
