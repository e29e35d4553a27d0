"""Against vLLM's real API server: what `check` lets in is served, and what it refuses is refused.

`benchmarks/conformance.py` generates thousands of such requests; these are the fixed ones and the
examples that it has kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.seeds import NOT_CURED, SEEDS

# isort: split
from judging.calibrated import calibrated
from judging.judge import Judge
from judging.pool import Pool
from judging.request import Order, summary
from judging.results import kept_examples
from judging.subject import subject

pytestmark = [pytest.mark.engine, pytest.mark.slow]

EXAMPLES = Path(__file__).with_name("examples.jsonl")


def cases() -> Iterator[tuple[str, str, Order]]:
    """Model by model, so that one server runs at a time."""
    for key, seeds in SEEDS.items():
        yield from ((key, name, order) for name, order in seeds.items())
        kept = [example for example in kept_examples(EXAMPLES) if example.subject == key]
        yield from ((key, example.cause, example.order) for example in kept)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    orders = [order for _, _, order in cases()]
    named = {item.medium for order in orders for one in order for item in one.items}
    corpus = {name for key in SEEDS for names in subject(key).corpus for name in names}
    return Pool(tmp_path_factory.mktemp("media"), named | corpus)


@pytest.fixture(scope="module")
def judge_of(
    pool: Pool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Judge]]:
    """The last one asked for runs; the one before is ended."""
    running: list[tuple[str, Judge]] = []

    def judge(key: str) -> Judge:
        if not running or running[-1][0] != key:
            end()
            folder = tmp_path_factory.mktemp(key)
            one = subject(key)
            made = calibrated(one, pool, folder / "calibrated")
            running.append((key, Judge(one, made, pool, folder / "server.log")))
        return running[-1][1]

    def end() -> None:
        while running:
            running.pop()[1].close()

    yield judge
    end()


def known(key: str, name: str) -> str:
    """The section by which it is known to differ, if it is."""
    named = f"{key}: {name}"
    return next((why for start, why in NOT_CURED.items() if named.startswith(start)), "")


def params() -> Iterator[object]:
    for key, name, order in cases():
        why = known(key, name)
        marks = [pytest.mark.xfail(reason=why, strict=True)] if why else []
        yield pytest.param(key, name, order, id=f"{key}: {name}", marks=marks)


@pytest.mark.parametrize(("key", "name", "order"), params())
def test_check_says_what_the_server_does(
    judge_of: Callable[[str], Judge], pool: Pool, key: str, name: str, order: Order
) -> None:
    missing = {item.medium for one in order for item in one.items} & set(pool.missing)
    if missing:
        pytest.skip(f"cannot be written here: {', '.join(missing)}")
    judge = judge_of(key)
    judge.forget()
    verdicts = judge.in_order(order)
    for request, verdict in zip(order, verdicts, strict=True):
        assert not verdict.disagrees, f"{verdict.kind}: {summary(request)}: {verdict}"
