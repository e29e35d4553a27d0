from __future__ import annotations

import pytest

from tests.conformance.against import agree, params

# isort: split
from judging.judge import Judge
from judging.request import Order

pytestmark = [pytest.mark.engine, pytest.mark.slow]
MODEL = "qwen3-vl"


@pytest.mark.parametrize("order", params(MODEL))
def test_check_says_what_the_server_does(judge: Judge, order: Order) -> None:
    agree(judge, order)
