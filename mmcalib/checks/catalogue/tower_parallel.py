"""Trap of `mm_encoder_tp_mode: data`: one large item is one rank's alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.trap import Figures, Taken, Trap, TrapRule, size
from mmcalib.derive.adequacy import ADEQUATE

LARGEST_ON_ONE_RANK = CheckId("largest item on one rank")

MODE = "mm_encoder_tp_mode"


def tower_parallel(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """Whole items are dealt out to the ranks (`get_load_balance_assignment`,
    vllm/model_executor/models/vision.py of 0.32): the profile's many equal ones lie on all ranks, a
    single one as large as the budget, a video, on one.
    """
    ranks = engine_args.get("tensor_parallel_size") or 1
    if engine_args.get(MODE) != "data" or ranks < 2:
        return None
    budget = known.budget
    profiled = _per_rank(known, ranks)
    largest = max((budget.largest_item(m) for m, n in known.counts.items() if n), default=0)
    detail = (
        f"{MODE} data: the profile of {budget.profiled_items} × {budget.profiled_modality} puts "
        f"{profiled:,} tokens on one of {ranks} ranks, a single item may put {largest:,} there "
        "(get_load_balance_assignment, vllm/model_executor/models/vision.py)"
    )
    name = LARGEST_ON_ONE_RANK
    if not largest or profiled >= ADEQUATE * largest:
        return Trap(Check(name, "pass", detail))
    more = None
    if known.encoder_peak_bytes is not None and profiled:
        more = round(known.encoder_peak_bytes * (largest / profiled - 1))
    taken = None if more is None else Taken("a largest item on one rank", more)
    remedy = "mm-encoder-tp-mode: weights, or a batch that no item is larger than a rank's part of"
    return Trap(Check(name, "warn", f"{detail}{size(more)}: nobody reserves it", remedy), taken)


def _per_rank(known: Figures, ranks: int) -> int:
    """Tokens of the rank that has most of the profile's items."""
    budget = known.budget
    if budget.profiled_modality is None:
        return 0
    dummy = budget.dummies.get(budget.profiled_modality)
    embeds = dummy.embeds if dummy else budget.largest_item(budget.profiled_modality)
    return math.ceil(budget.profiled_items / ranks) * embeds


TRAPS = (TrapRule(30, tower_parallel),)
