"""Gemma 4's soft tokens: written, tried, chosen and said, and across the pipe."""

from pydantic import TypeAdapter

from mmcalib.checks.dialect import line_of
from mmcalib.derive import frontier
from mmcalib.derive.frontier import choose
from mmcalib.derive.policy import Policy
from mmcalib.domain.knobs import KNOBS, Knob, Setting, TokenCap
from mmcalib.domain.shapes import ImageShape
from tests.derive.costed import cost, table

PHOTO = ImageShape(4000, 3000)
GEMMA4 = TokenCap(
    path=("images_kwargs", "max_soft_tokens"), value=280, steps=(70, 140, 280, 560, 1120)
)


def test_it_is_written_tried_chosen_and_said():
    assert frontier.at(GEMMA4, 140) == Setting({"images_kwargs": {"max_soft_tokens": 140}})
    default = table(cost(PHOTO, 280))
    points = [
        frontier.point(GEMMA4, value, table(cost(PHOTO, int(value))), default)
        for value in GEMMA4.values(default.of("image"), Policy())
    ]
    assert choose(points, Policy()).value == 280
    assert choose(points, Policy(max_tokens_per_item=200)).value == 140
    assert line_of(GEMMA4, 70, {}) == "mm-processor-kwargs: {images_kwargs: {max_soft_tokens: 70}}"


def test_it_crosses_the_pipe():
    adapter = TypeAdapter(tuple[Knob, ...])
    assert adapter.validate_json(adapter.dump_json((GEMMA4,))) == (GEMMA4,)
    assert TokenCap in KNOBS
