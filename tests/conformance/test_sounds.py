import pytest

from mmcalib.releases.release import VLLM_0_29, VLLM_0_31
from tests.conformance.against import agree, params

# isort: split
from judging.judge import Judge
from judging.request import Order

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.xfail(
        VLLM_0_29.is_reached and not VLLM_0_31.is_reached,
        reason="0.29 and 0.30 cut off no sound: ten minutes are longer than the context",
        run=False,
    ),
]
MODEL = "qwen2-audio"


@pytest.mark.parametrize("order", params(MODEL))
def test_check_says_what_the_server_does(judge: Judge, order: Order) -> None:
    agree(judge, order)
