"""What the report's reader may try, as the calibration keeps it."""

from __future__ import annotations

from types import SimpleNamespace

from mmcalib.derive.policy import Policy
from mmcalib.domain.setting import DEFAULT
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.gpus import catalogue
from mmcalib.progress import Silent
from mmcalib.result.what_if import WhatIf
from mmcalib.workflows.calibration.decided import Decided
from mmcalib.workflows.calibration.what_if import what_if
from mmcalib.workflows.decision.grid import grid
from mmcalib.workflows.decision.held import held
from mmcalib.workflows.decision.long_requests import long_requests
from mmcalib.workflows.decision.texts import Texts
from mmcalib.workflows.memory.grid_pools import grid_pools
from mmcalib.workflows.memory.prediction import MemoryPrediction
from mmcalib.workflows.read import ReadCorpus
from tests.workflows.corpora import corpus, decide
from tests.workflows.decision.test_beside_the_chosen import source
from tests.workflows.fake_host import opened
from tests.workflows.memory.test_grid_pools import Pretended

PAGE, ICON, CLIP = ImageShape(2800, 2800), ImageShape(84, 84), VideoShape(240, 30.0, 8.0, 280, 280)
MODEL = opened()


def found(read: ReadCorpus) -> WhatIf:
    budgets = source(MODEL, Policy())
    decision = held(decide(read, model=MODEL), budgets, Silent())
    tried = grid(decision, budgets, Silent())
    with MemoryPrediction(catalogue.find("L4"), Pretended(), {"model": "/m"}) as prediction:
        pools = grid_pools(prediction, tried, decision, Silent())
    long = long_requests(read.prompts, decision.counts, decision.default_table, Texts())
    served = SimpleNamespace(corpus=read, opened=MODEL, texts=Texts())
    decided = Decided(served, (), decision, {}, tried, long)  # type: ignore[arg-type]
    return what_if(decided, pools, DEFAULT, 16)


def rejected(made: WhatIf, places: list[int], context: int) -> int:
    assert made.rejected is not None
    like = (r for r in made.rejected if r.places == places and r.max_model_len == context)
    return next((r.requests for r in like), 0)


def test_a_smaller_cap_lets_in_what_a_small_context_refuses() -> None:
    made = found(corpus([], [[PAGE], [PAGE, CLIP], [ICON]]))
    (images,) = [n for n, group in enumerate(made.groups) if group.modalities == ["image"]]
    least = min(
        (state.value, place) for place, state in enumerate(made.groups[images].states) if state.knob
    )[1]
    small, chosen = made.contexts[0], [0] * len(made.groups)
    capped = [least if n == images else 0 for n in range(len(made.groups))]
    assert rejected(made, chosen, small) == 2
    assert rejected(made, capped, small) == 0
    assert rejected(made, chosen, made.contexts[-1]) == 0
    assert made.requests == 3


def test_a_state_says_what_gives_it_and_what_it_takes() -> None:
    made = found(corpus([], [[PAGE], [PAGE, CLIP], [ICON]]))
    for group in made.groups:
        first, *others = group.states
        assert (first.knob, first.items_downscaled) == (None, 0)
        assert all(state.knob in group.chosen for state in others)
        assert len({str(state.setting) for state in group.states}) == len(group.states)
    (images,) = [group for group in made.groups if group.modalities == ["image"]]
    assert images.items == 3
    assert max(state.items_downscaled for state in images.states) == 2


def test_without_requests_each_item_stands_for_itself() -> None:
    made = found(corpus([PAGE, PAGE, ICON]))
    assert made.requests == 3
    assert rejected(made, [0] * len(made.groups), made.contexts[0]) == 2
