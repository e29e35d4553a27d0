from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.against import agree, judging, params

# isort: split
from judging.judge import Judge
from judging.request import Order

pytestmark = [pytest.mark.engine, pytest.mark.slow]
MODEL = "qwen3-vl"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judging(MODEL, tmp_path_factory.mktemp(MODEL)) as judge:
        yield judge


@pytest.mark.parametrize("order", params(MODEL))
def test_check_says_what_the_server_does(judge: Judge, order: Order) -> None:
    agree(judge, order)
