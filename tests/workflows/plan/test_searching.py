"""What a plan tries of all the fixes there are, on a bench whose rehearsals stand for vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mmcalib.derive.fix_search import SearchResult
from mmcalib.derive.fixes import Fix, Goal
from mmcalib.domain.memory import EncoderStep, RehearsedMemory
from mmcalib.domain.shapes import Modality
from mmcalib.memory.rehearse import MemoryPrediction
from mmcalib.models import gpus
from mmcalib.progress import Silent
from mmcalib.workflows.plan.trials import MOST_REHEARSALS, FixTrials, search_fixes
from tests.derive.costed import AREA
from tests.workflows.rehearsals import BUDGET, FACTS, rehearsed


@dataclass
class Wanting:
    """Has few tokens of KV cache until one argument has one value."""

    name: str
    value: Any
    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> RehearsedMemory:
        self.asked.append(engine_args)
        enough = engine_args.get(self.name) == self.value
        return rehearsed(kv_cache_tokens=400_000 if enough else 1_000)


def search(wanting: Wanting, engine_args: Mapping[str, Any]) -> tuple[list[Fix], SearchResult]:
    with MemoryPrediction(gpus.find_gpu("H100-80G"), wanting) as prediction:
        bench = FixTrials(prediction, {"model": "/m", **engine_args}, Goal("kv_tokens", 200_000))
        return search_fixes(bench, FACTS, Silent())


def test_every_fix_is_rehearsed_on_its_own_and_the_one_that_does_it_is_found() -> None:
    wanting = Wanting("kv_cache_dtype", "fp8")
    fixes, found = search(wanting, {})
    on_their_own = [fix for fix in fixes if fix.alone and not fix.untried]
    assert [*found.alone] == [fix.name for fix in on_their_own]
    for fix in on_their_own:
        assert {"model": "/m", **fix.changes} in wanting.asked
    assert [fix.name for fix in found.best] == ["kv_cache_dtype"]
    assert found.reached
    assert len(wanting.asked) <= MOST_REHEARSALS


@dataclass
class SharedCap:
    """Whose largest video is as large as the cap of images lets it be."""

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> RehearsedMemory:
        kwargs = engine_args.get("mm_processor_kwargs") or {}
        video = 4_096 if "images_kwargs" in kwargs else 114_688
        items: dict[Modality, int] = {"image": 4_096 if kwargs else 16_384, "video": video}
        return rehearsed(budget=replace(BUDGET, max_tokens_per_item=items), kv_cache_tokens=1_000)


def test_a_cap_of_images_that_turns_videos_away_costs_requests() -> None:
    facts = replace(FACTS, knobs=(AREA,), largest_items={"image": 16_384, "video": 114_688})
    with MemoryPrediction(gpus.find_gpu("H100-80G"), SharedCap()) as prediction:
        bench = FixTrials(prediction, {"model": "/m"}, Goal("kv_tokens", 200_000))
        fixes, _ = search_fixes(bench, facts, Silent())
    caps = [fix for fix in fixes if fix.knob == AREA.name]
    assert [fix.level for fix in caps] == [0, 1]
    assert {fix.cost for fix in caps} == {"requests"}
    assert all("rejects larger video items" in fix.price for fix in caps)
