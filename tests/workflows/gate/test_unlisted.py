"""Many shapes are not listed where a rule says to the token what each costs."""

from __future__ import annotations

import random

import pytest

from mmcalib.admission.rules import ProvenRule, costs, prove_rules
from mmcalib.decision.decision import Decision
from mmcalib.derive.admission import admit
from mmcalib.derive.bounds import Ceiling
from mmcalib.derive.policy import Policy
from mmcalib.domain.shapes import ImageShape
from mmcalib.progress import Silent
from mmcalib.results.costs import Costs, gate_of
from tests.workflows.corpora import corpus, decide, path_of
from tests.workflows.fake_host import FakeHost, opened
from tests.workflows.gate.test_rules import Resizing


def shapes(number: int) -> list[ImageShape]:
    chance = random.Random(5)
    found = {(chance.randint(60, 3_000), chance.randint(60, 3_000)) for _ in range(number)}
    return [ImageShape(*size) for size in sorted(found)]


def kept(found: list[ImageShape], odd: ImageShape | None = None) -> tuple[Decision, Costs]:
    files = {path_of(odd): ImageShape(280, 280)} if odd else None
    decision = decide(corpus(found), host=Resizing, files=files)
    host = Resizing(opened(), {path_of(shape): shape for shape in found})
    rules = prove_rules(host, opened(), decision, Silent())  # type: ignore[arg-type]
    return decision, costs(decision, Policy(), rules)


def test_the_gate_knows_each_to_the_token_all_the_same() -> None:
    decision, found = kept(shapes(2_500))
    part = found.modalities["image"]
    assert part.unlisted is not None
    assert len(part.known) == 1_000
    assert part.unlisted.shapes == len(decision.table.costs) - 1_000
    gate = gate_of(found, decision.engine_args, decision.budget.encoder_budget_tokens)
    for shape, cost in decision.table.costs.items():
        admission = admit(gate, shape)
        assert (admission.tokens, admission.embeds) == (cost.tokens, cost.embeds)
    assert min(one.tokens for one in part.known) >= part.unlisted.tokens[-1].least_tokens
    assert sum(b.items for b in part.unlisted.tokens) == part.unlisted.items
    assert sum(cell.shapes for cell in part.unlisted.sizes) == part.unlisted.shapes


def test_the_document_does_not_grow() -> None:
    _, few = kept(shapes(1_500))
    _, many = kept(shapes(6_000))
    assert len(many.model_dump_json()) < 1.1 * len(few.model_dump_json())


def test_an_item_that_is_not_what_its_header_says_is_listed() -> None:
    odd = min(shapes(1_500), key=lambda s: s.width_px * s.height_px)
    decision, found = kept(shapes(1_500), odd)
    assert decision.table.mismatches
    assert odd in [one.shape for one in found.modalities["image"].known]


def test_where_a_rule_only_bounds_them_very_many_are_not_listed() -> None:
    """As of models that cut images into tiles: lists would grow without end."""
    for number, listed in ((2_500, None), (20_500, 1_000)):
        decision = decide(corpus(shapes(number)), host=Resizing)
        every = len(decision.table.costs)
        rule = ProvenRule(Ceiling(20_000, 20_000, 3_000, 200.0), every, exact=False)
        found = costs(decision, Policy(), {"image": rule})
        part = found.modalities["image"]
        assert len(part.known) == (listed or every)
        if part.unlisted is not None:
            assert part.unlisted.shapes == every - 1_000
            gate = gate_of(found, decision.engine_args, decision.budget.encoder_budget_tokens)
            light = min(decision.table.costs.values(), key=lambda cost: cost.tokens)
            admission = admit(gate, light.shape)
            assert admission.tokens is None or admission.tokens >= light.tokens


@pytest.mark.parametrize("host", [FakeHost])
def test_without_a_rule_all_are_listed(host: type[FakeHost]) -> None:
    decision = decide(corpus(shapes(1_500)), host=host)
    part = costs(decision, Policy(), {}).modalities["image"]
    assert part.unlisted is None
    assert len(part.known) == len(decision.table.costs)
