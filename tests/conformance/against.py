"""Compare `check` with vLLM's API server on fixed requests and what `benchmarks/conformance.py`
keeps of its thousands. Each model has a module, so that two servers run side by side.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.conformance.seeds import NOT_CURED, SEEDS

# isort: split
from judging.bodies import PART_MEDIA
from judging.calibrated import calibrated
from judging.judge import Judge
from judging.pool import Pool
from judging.request import Order, summary
from judging.results import kept_examples
from judging.subject import subject

EXAMPLES = Path(__file__).with_name("examples.jsonl")


def cases(key: str) -> Iterator[tuple[str, Order]]:
    yield from SEEDS[key].items()
    yield from ((e.cause, e.order) for e in kept_examples(EXAMPLES) if e.subject == key)


def params(key: str) -> Iterator[object]:
    for name, order in cases(key):
        named = f"{key}: {name}"
        why = next((why for start, why in NOT_CURED.items() if named.startswith(start)), "")
        marks = [pytest.mark.xfail(reason=why, strict=True)] if why else []
        yield pytest.param(order, id=name, marks=marks)


@contextmanager
def judging(key: str, folder: Path) -> Iterator[Judge]:
    one = subject(key)
    named = {i.medium for _, order in cases(key) for asked in order for i in asked.items}
    named |= set(PART_MEDIA.values())
    pool = Pool(folder / "media", named | {name for names in one.corpus for name in names})
    made = calibrated(one, pool, folder / "calibrated")
    with closing(Judge(one, made, pool, folder / "server.log")) as judge:
        yield judge


def agree(judge: Judge, order: Order) -> None:
    """Assert that the server takes what `check` lets in, and refuses the rest."""
    missing = {item.medium for one in order for item in one.items} & set(judge.pool.missing)
    if missing:
        pytest.skip(f"cannot be written here: {', '.join(missing)}")
    judge.forget()
    for request, verdict in zip(order, judge.in_order(order), strict=True):
        assert not verdict.disagrees, f"{verdict.kind}: {summary(request)}: {verdict}"
