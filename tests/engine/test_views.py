"""The bound on what cached views keep alive, against vLLM's manager in its own process."""

import random
from collections import Counter
from dataclasses import asdict, dataclass

import pytest

from mmcalib.limits.demand import bound_retained_storage
from tests.engine.test_mm_cache import REQUESTS, in_vllm

pytestmark = pytest.mark.engine

# The most tokens alive: `_try_schedule_encoder_inputs` with vLLM's manager, one item per request.
# A step encodes one batch, whose storage lives until the last of its items is dropped.
VIEWS = """
def alive(case):
    manager, batch_of, sizes, most = EncoderCacheManager(cache_size=case["cache"]), {}, [], 0
    number = 0
    for step in case["steps"]:
        budget, scheduled, fresh = case["batch"], [], []
        for name, embeds in step:
            number += 1
            request = request_of(number, name, embeds)
            if not manager.check_and_update_cache(request, 0):
                if not manager.can_allocate(request, 0, budget, 0):
                    continue
                manager.allocate(request, 0)
                budget -= embeds
                fresh.append((name, embeds))
            scheduled.append(request)
        for name in manager.get_freed_mm_hashes():
            batch_of.pop(name, None)
        for name, _ in fresh:
            batch_of[name] = len(sizes)
        sizes.append(sum(embeds for _, embeds in fresh))
        most = max(most, sum(sizes[batch] for batch in set(batch_of.values())))
        for request in scheduled:
            manager.free(request)
    return most


print(json.dumps([alive(case) for case in asked]))
"""

Item = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Case:
    cache: int
    batch: int
    steps: list[list[Item]]

    @property
    def sizes(self) -> dict[str, int]:
        return {name: embeds for step in self.steps for name, embeds in step}

    def asked_again(self) -> list[int]:
        times = Counter(name for step in self.steps for name, _ in step)
        return [self.sizes[name] for name, count in times.items() if count > 1]


def any_case(seed: int) -> Case:
    """Some items hot, most asked for once; caches of one step up to four."""
    choose = random.Random(seed)
    batch = choose.randint(8, 60)
    hot = [(f"h{n}", choose.randint(1, max(1, batch // 4))) for n in range(choose.randint(0, 8))]
    steps: list[list[Item]] = []
    for n in range(choose.randint(2, 40)):
        new = [(f"{n}-{i}", choose.randint(1, batch)) for i in range(choose.randint(0, 4))]
        step = [*choose.sample(hot, choose.randint(0, len(hot))), *new]
        choose.shuffle(step)
        steps.append(step)
    return Case(batch * choose.randint(1, 4), batch, steps)


def test_no_traffic_keeps_more_alive_than_the_bound() -> None:
    """A view pins the storage of its batch."""
    cases = [any_case(seed) for seed in range(400)]
    most = in_vllm(REQUESTS + VIEWS, list(map(asdict, cases)))
    beyond = 0
    for case, alive in zip(cases, most, strict=True):
        every = bound_retained_storage(case.sizes.values(), case.cache, case.batch, known=False)
        again = bound_retained_storage(case.asked_again(), case.cache, case.batch, known=True)
        assert alive <= every.tokens
        assert alive <= again.tokens
        beyond += alive > case.cache
    assert beyond > 50, "views keep more than the cache counts"


def test_the_bound_is_reached_by_one_small_picture_in_each_full_batch() -> None:
    """A cache of 2,400 tokens keeps 74.1 MB alive and counts 9.0."""
    small = [(f"s{n}", 4) for n in range(10)]
    steps: list[list[Item]] = []
    for n in range(10):
        room = 2400 - 4 * n - 4
        steps += [list(small[:n]), [*small[: n + 1], (f"large-{n}", room)]]
    case = Case(2400, 2400, [step for step in steps if step])
    (alive,) = in_vllm(REQUESTS + VIEWS, [asdict(case)])
    bound = bound_retained_storage([4] * 10, 2400, 2400, known=False)
    assert alive == bound.tokens == sum(2400 - 4 * n for n in range(10))
    assert bound.batches == 10
