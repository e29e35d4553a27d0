"""The KV cache of what else could be set: rehearsed where it must be, computed elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mmcalib.derive.policy import Policy
from mmcalib.derive.pool_curve import profiled_tokens
from mmcalib.domain.budget import Budget
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.rehearsed import EncoderStep, PhasePeak, Rehearsed
from mmcalib.domain.shapes import ImageShape, Shape, VideoShape
from mmcalib.errors import EngineError
from mmcalib.gpus import catalogue
from mmcalib.progress import Silent
from mmcalib.releases.constants import BLOCK_TOKENS
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.grid import Grid, grid
from mmcalib.workflows.decision.held import held
from mmcalib.workflows.memory.explored import profile
from mmcalib.workflows.memory.grid_pools import GridPool, begin_grid, grid_pools
from mmcalib.workflows.memory.prediction import MemoryPrediction
from tests.workflows.corpora import corpus, decide
from tests.workflows.fake_host import FakeHost, budget, opened
from tests.workflows.rehearsals import rehearsed

MIB = 1 << 20
LATER = 300 * MIB
TOKEN_BYTES = 36_864
MODEL = opened()
SHAPES: list[Shape] = [ImageShape(2800, 2800), VideoShape(240, 30.0, 8.0, 280, 280)]


class Pretended:
    """A GPU with `left` bytes for peak and KV cache, whose allocator keeps a little, as it will."""

    def __init__(
        self, left: int = 12_000 * MIB, *, state_bytes: int = 0, model: ModelInfo = MODEL
    ) -> None:
        self.left, self.state_bytes, self.model = left, state_bytes, model
        self.asked = 0

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> Rehearsed:
        self.asked += 1
        args = {key: value for key, value in engine_args.items() if key != "model"}
        return self.of(budget(self.model, {"max_num_seqs": 128, **args}, build_dummy=False))

    def of(self, found: Budget) -> Rehearsed:
        tokens = profiled_tokens(found)
        encoder = tokens * MIB // 8
        kept = hash((tokens, found.max_model_len)) % (4 * MIB)
        peak = max(encoder, LATER)
        pool = self.left - peak - kept
        sequence = -(-found.max_model_len // BLOCK_TOKENS) * BLOCK_TOKENS * TOKEN_BYTES
        holds = pool / (sequence + self.state_bytes)
        starts = holds >= 1
        return rehearsed(
            activation_peak_bytes=peak,
            phases=(
                PhasePeak("encoder", encoder, 0, "", ()),
                PhasePeak("sampler", LATER, 0, "", ()),
            ),
            kv_cache_bytes=pool,
            kv_bytes_per_token=TOKEN_BYTES,
            kv_cache_tokens=int(holds * found.max_model_len) if starts else None,
            max_concurrency=holds if starts else None,
            budget=found,
        )


def tried(gpu: Pretended) -> tuple[list[GridPool], Grid, Decision]:
    model = gpu.model
    budgets = BudgetSource(FakeHost(model), model, "/m", Policy())  # type: ignore[arg-type]
    decision = held(decide(corpus(SHAPES), model=model), budgets, Silent())
    found = grid(decision, budgets, Silent())
    with MemoryPrediction(catalogue.find("L4"), gpu, {"model": "/m"}, (EngineError,)) as asked:
        asked.rehearse(decision.engine_args)
        begin_grid(asked, found, decision)
        return grid_pools(asked, found, decision, Silent()), found, decision


@pytest.mark.parametrize("state_bytes", [0, 40 * MIB], ids=["plain", "with a state"])
def test_each_is_what_a_rehearsal_of_it_would_find(state_bytes: int) -> None:
    gpu = Pretended(state_bytes=state_bytes)
    pools, found, _ = tried(gpu)
    assert len(pools) == len(found.combinations)
    assert any(one.rehearsed is None for one in pools)
    assert gpu.asked < len(found.combinations) / 2
    for one in pools:
        really = gpu.of(one.combination.budget)
        assert abs(one.pool.nbytes - really.kv_cache_bytes) <= max(one.pool.off_bytes, 0)
        assert (one.kv_cache_tokens is None) == (really.kv_cache_tokens is None)
        if one.kv_cache_tokens is not None and really.kv_cache_tokens is not None:
            assert abs(one.kv_cache_tokens / really.kv_cache_tokens - 1) < 0.01


def test_what_was_decided_is_as_it_was_rehearsed() -> None:
    pools, _, decision = tried(Pretended())
    (chosen,) = [one for one in pools if one.combination.chosen]
    assert chosen.rehearsed is not None
    assert chosen.pool.off_bytes == 0
    assert profile(chosen.combination) == profile(decision)


def test_a_small_pool_is_rehearsed_itself() -> None:
    """Where what the allocator keeps is a hundredth of it and more."""
    roomy, _, _ = tried(Pretended())
    tight, _, _ = tried(Pretended(1_200 * MIB, model=opened(max_model_len=4096)))

    def unsure(pools: list[GridPool]) -> float:
        off = [p.pool.off_bytes / p.pool.nbytes for p in pools if p.pool.nbytes > 0]
        return max(off, default=0)

    assert unsure(roomy) < 0.01
    small = [p for p in tight if 0 < p.pool.nbytes < 300 * MIB]
    assert small
    assert any(p.rehearsed is not None for p in small)


def test_what_cannot_be_rehearsed_is_left_out() -> None:
    class Refusing(Pretended):
        def of(self, found: Budget) -> Rehearsed:
            return replace(super().of(found), budget=None, max_concurrency=None)

    pools, found, _ = tried(Refusing())
    assert all(one.rehearsed is not None for one in pools)
    assert len(pools) < len(found.combinations)
