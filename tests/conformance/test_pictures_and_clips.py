import pytest

from mmcalib.releases.release import VLLM_0_30
from tests.conformance.against import agree, params

# isort: split
from judging.judge import Judge
from judging.request import Order

pytestmark = [pytest.mark.engine, pytest.mark.slow]
# vLLM 0.28 and 0.29 start no Qwen3-VL on a CPU: they ask its text part for an architecture.
MODEL = "qwen3-vl" if VLLM_0_30.is_reached else "qwen2.5-vl"


@pytest.mark.parametrize("order", params(MODEL))
def test_check_says_what_the_server_does(judge: Judge, order: Order) -> None:
    agree(judge, order)
