"""Checks of the corpus itself: what could be read, loaded and served."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.checks.catalogue.corpus import (
    CORPUS_READABLE,
    MODALITIES_SERVED,
    MODALITY_LOADS,
    STAND_INS_AGREE,
)
from mmcalib.checks.catalogue.items import ACCEPTED
from mmcalib.checks.check import Check
from mmcalib.derive.costs import CostTable
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.job.decision.decision import Decision
from mmcalib.job.read import Corpus
from mmcalib.wording import one_line

_SHOWN = 3


def readable(corpus: Corpus) -> Check:
    if not corpus.skipped:
        return Check(CORPUS_READABLE, "pass", f"all {corpus.files} files read")
    first = corpus.skipped[0]
    return Check(
        CORPUS_READABLE,
        "warn",
        f"{len(corpus.skipped)} skipped, such as {one_line(first.path)}: {first.reason}",
        "skipped.jsonl lists them with reasons",
    )


def agreement(decision: Decision) -> Check:
    table = decision.default_table
    name = STAND_INS_AGREE
    if not table.mismatches:
        count = table.compared
        detail = f"{count} of {count} real items cost as many tokens as blanks of their size"
        return Check(name, "pass", detail)
    shown = "; ".join(
        f"{m.exemplar}: {m.real_tokens} tokens, blank {m.blank_tokens} ({m.why})"
        for m in table.mismatches[:_SHOWN]
    )
    return Check(
        name,
        "warn",
        f"{len(table.mismatches)} of {table.compared} sampled items differ; the real one counts: "
        f"{shown}",
        "raise --sample to measure more real items",
    )


def refused(decision: Decision) -> Iterator[Check]:
    """Odd items are the user's affair; most of a modality refused is a broken installation."""
    table = decision.default_table
    for modality in MODALITIES:
        failed, loaded = table.failed.get(modality, 0), _loaded(table, modality)
        if failed > loaded:
            yield Check(
                MODALITY_LOADS.of(modality),
                "fail",
                f"vLLM's own loader fails on {failed} of {failed + loaded} sampled {modality} "
                "items that other libraries read; skipped.jsonl has its words",
                "convert them, or install what vLLM needs to decode them",
            )
        refused = [r for r in table.refusals if r.shape.modality == modality]
        if not refused:
            continue
        items, taken = sum(r.count for r in refused), sum(c.count for c in table.of(modality))
        first = refused[0]
        yield Check(
            ACCEPTED.of(modality),
            "fail" if items > taken else "warn",
            f"vLLM refuses {items} of {items + taken} whatever the limits, such as "
            f"{first.exemplar} ({first.shape}): {first.reason}",
            "remove or convert them, or install what the reason names: such requests will fail",
        )


def _loaded(table: CostTable, modality: Modality) -> int:
    return sum(cost.basis == "real" for cost in table.of(modality))


def unserved(left_out: dict[str, str]) -> Check:
    return Check(
        MODALITIES_SERVED,
        "warn",
        f"left out: {'; '.join(left_out.values())}",
        "requests with them will be rejected",
    )
