"""The KV cache of every combination that a reader may try: rehearsed, or between rehearsals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mmcalib.derive.pool_curve import Kind, KvPool, PoolCurve, kind, profiled_tokens
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.progress import Progress
from mmcalib.releases.constants import BLOCK_TOKENS
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.grid import Grid, GridCell
from mmcalib.workflows.memory.explored import Budgeted, Profile, profile
from mmcalib.workflows.memory.prediction import EngineArgs, MemoryPrediction

# Rehearsals of each kind, from the least that is profiled to the most; a rehearsal takes 2 s.
_SPOTS: Final = 5
# Where a pool is not known to a hundredth, it is rehearsed itself; at most so many are.
_SURE: Final = 0.01
_MORE: Final = 6


@dataclass(frozen=True, slots=True)
class GridPool:
    """`rehearsed` is that of the very combination, None where the pool is between others. One
    sequence takes `sequence_bytes` as far as that is known.
    """

    combination: GridCell
    pool: KvPool
    kv_cache_tokens: int | None
    max_concurrency: float | None
    rehearsed: Rehearsed | None = None
    sequence_bytes: float | None = None

    @property
    def doubt(self) -> float:
        """As a share of the pool; all of it where vLLM may start or not."""
        off = self.pool.off_bytes
        if off and abs(self.pool.nbytes - (self.sequence_bytes or 0)) <= off:
            return 1.0
        return off / self.pool.nbytes if self.pool.nbytes > 0 else 0.0


def begin_grid(prediction: MemoryPrediction, grid: Grid, decision: Decision) -> None:
    """Returns at once."""
    for args in _wanted(prediction, grid, decision).values():
        prediction.begin(args)


def grid_pools(
    prediction: MemoryPrediction, grid: Grid, decision: Decision, progress: Progress
) -> list[GridPool]:
    """Of all combinations of which something is known."""
    wanted = _wanted(prediction, grid, decision)
    with progress.step(f"rehearsing on {prediction.gpu.name}", len(wanted)) as task:
        found: dict[Profile, Rehearsed] = {}
        for key, args in wanted.items():
            answer = prediction.tried(args)
            found |= {key: answer} if answer else {}
            task.advance()
    for _ in range(_MORE):
        unsure = _least_sure(grid, found, decision)
        answer = prediction.tried(unsure.engine_args) if unsure else None
        if unsure is None or answer is None:
            break
        found[profile(unsure)] = answer
    return list(_pools(grid, found, decision))


def _wanted(
    prediction: MemoryPrediction, grid: Grid, decision: Decision
) -> dict[Profile, EngineArgs]:
    """What is rehearsed in any case, then combinations all along what each kind profiles, and one
    of each context where a sequence does not take its tokens alone.
    """
    wanted: dict[Profile, EngineArgs] = {profile(decision): decision.engine_args}
    for explored in decision.explored:
        wanted.setdefault(profile(explored), explored.engine_args)
    kinds = defaultdict[Kind, list[GridCell]](list)
    for one in grid.combinations:
        kinds[kind(one.budget)].append(one)
    spots = [spot for alike in kinds.values() for spot in _spots(alike)]
    answer = prediction.known(decision.engine_args)
    if not isinstance(answer, Rehearsed) or not _plain(answer):
        spots += [one for one in grid.combinations if not any(one.places)]
    for one in spots:
        wanted.setdefault(profile(one), one.engine_args)
    return wanted


def _spots(alike: Iterable[GridCell]) -> Iterator[GridCell]:
    by_tokens = {profiled_tokens(one.budget): one for one in alike}
    ascending = [by_tokens[tokens] for tokens in sorted(by_tokens)]
    last = len(ascending) - 1
    yield from (
        ascending[n] for n in sorted({round(i * last / (_SPOTS - 1)) for i in range(_SPOTS)})
    )


def _curves(
    grid: Grid, found: Mapping[Profile, Rehearsed], decision: Decision
) -> dict[Kind, PoolCurve]:
    """Of the same budgets as were asked for; a profile of hinted sizes is another one."""
    every: list[Budgeted] = [*grid.combinations, *decision.explored]
    hinted = profile(decision) if decision.hints else None
    spots = defaultdict[Kind, list[tuple[int, Rehearsed]]](list)
    for key, budget in {profile(one): one.budget for one in every}.items():
        if key in found and key != hinted:
            spots[kind(budget)].append((profiled_tokens(budget), found[key]))
    return {which: PoolCurve.of(those) for which, those in spots.items()}


def _pools(
    grid: Grid, found: Mapping[Profile, Rehearsed], decision: Decision
) -> Iterator[GridPool]:
    curves = _curves(grid, found, decision)
    known_off = max((c.off_bytes or 0 for c in curves.values()), default=0)
    for one in grid.combinations:
        exact = found.get(profile(one))
        if exact is not None:
            pool = KvPool(exact.kv_cache_bytes)
            yield GridPool(one, pool, exact.kv_cache_tokens, exact.max_concurrency, exact)
            continue
        between = _elsewhere(one, found, known_off)
        if between is None and (curve := curves.get(kind(one.budget))):
            between = curve.at(profiled_tokens(one.budget))
        sequence = _sequence_bytes(one.max_model_len, found.values())
        if between is None or (sequence is None and between.nbytes > 0):
            continue
        holds = between.nbytes / sequence if sequence else 0.0
        starts = holds >= 1
        yield GridPool(
            one,
            between,
            int(holds * one.max_model_len) if starts else None,
            holds if starts else None,
            sequence_bytes=sequence,
        )


def _elsewhere(one: GridCell, found: Mapping[Profile, Rehearsed], known_off: int) -> KvPool | None:
    """From the same profile under the nearest context: that itself moves only what the allocator
    keeps, by no more than other rehearsals are off.
    """
    *same, context = profile(one)
    others = [key for key in found if list(key[:-1]) == same]
    if not others or not known_off:
        return None
    nearest = min(others, key=lambda key: abs(key[-1] - context))
    return KvPool(found[nearest].kv_cache_bytes, known_off)


def _least_sure(
    grid: Grid, found: Mapping[Profile, Rehearsed], decision: Decision
) -> GridCell | None:
    """The one whose pool is furthest from known."""
    worst = max(_pools(grid, found, decision), key=lambda one: one.doubt, default=None)
    return worst.combination if worst is not None and worst.doubt > _SURE else None


def _sequence_bytes(context: int, found: Iterable[Rehearsed]) -> float | None:
    """What one sequence of the whole context takes."""
    plain = None
    for one in found:
        longest = one.budget.max_model_len if one.budget else 0
        if longest == context and one.max_concurrency:
            return one.kv_cache_bytes / one.max_concurrency
        if longest >= context and _plain(one):
            plain = one
    return _blocks(context) * plain.kv_bytes_per_token if plain else None


def _plain(found: Rehearsed) -> bool:
    """Whether a sequence takes the bytes of its tokens and no others: no layer looks back less far
    than the context, or keeps a state instead.
    """
    if not found.max_concurrency or found.budget is None:
        return False
    tokens = _blocks(found.budget.max_model_len) * found.kv_bytes_per_token
    # What is left behind the last whole block belongs to no sequence.
    block = BLOCK_TOKENS * found.kv_bytes_per_token
    off = found.kv_cache_bytes / found.max_concurrency / tokens - 1
    return abs(off) <= 2 * block / found.kv_cache_bytes


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
