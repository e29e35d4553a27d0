from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.domain.items import RequestText, TextBound
from mmcalib.domain.model import REQUEST_BYTES, Server
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape, weight
from mmcalib.gate.admission import (
    Admission,
    ChatFit,
    ChatText,
    Gate,
    ShapeCost,
    admit,
    admit_prompt,
    fit_chat,
)
from mmcalib.gate.fit import TokenRange
from mmcalib.gate.item_remedies import add_prompt_remedy, add_remedy, count_prompts
from tests import builders
from tests.builders import AREA

PAGE, SLIVER, TALL = ImageShape(1316, 756), ImageShape(2, 900), ImageShape(280, 2800)
CLIP = VideoShape(300, 30.0, 10.0, 640, 272)
GATE = replace(
    builders.GATE,
    counts={"image": 2, "video": 1, "audio": 0},
    known_costs={PAGE: ShapeCost(1269, 1269, "real")},
    refusals={SLIVER: "aspect ratio"},
    rules={"image": AREA, "video": builders.GATE.rules["video"]},
)
ORDER = ("no", "unknown", "fits")


def remedied(gate: Gate, shape: Shape) -> Admission:
    return add_remedy(gate, shape, admit(gate, shape))


def prompt(gate: Gate, shapes: list[Shape], text_bytes: int = 0, **asks: Any) -> Admission:
    asked = RequestText(text_bytes=text_bytes, **asks)
    return add_prompt_remedy(gate, shapes, asked, admit_prompt(gate, shapes, asked))


def said(found: Admission) -> str:
    return f"{found.answer}: {found.reason}"


def test_what_vllm_refused_does_not_fit() -> None:
    assert admit(GATE, SLIVER).reason == "vLLM: aspect ratio"
    assert remedied(GATE, ImageShape(10, 2010)).remedy == "crop or pad to at most 200:1"


def test_the_context_bounds_an_item_too() -> None:
    found = remedied(replace(GATE, max_model_len=2000), PAGE)
    assert said(found) == "unknown: 1269 tokens + 1024 for text, max_model_len is 2000"
    assert found.remedy.startswith("resize to ")
    found = remedied(replace(GATE, max_model_len=1269), PAGE)
    assert said(found) == "no: 1269 tokens + 1024 for text, max_model_len is 1269"
    # Whoever asks for it alone may leave as little as one token for the answer.
    assert remedied(replace(GATE, max_model_len=1270), PAGE).answer == "unknown"


def test_a_video_is_cut_or_resized() -> None:
    found = remedied(GATE, CLIP)
    assert said(found) == "no: at least 2300 tokens, the encoder cache holds 2000"
    assert found.remedy == "cut to 239 frames (8.0 s) or resize to 574×244"
    assert found.largest == replace(CLIP, width_px=574, height_px=244)


def test_a_prompt_has_as_many_items_as_the_limit_says() -> None:
    assert prompt(GATE, [PAGE, PAGE]).fits
    found = prompt(GATE, [PAGE, PAGE, PAGE])
    assert said(found) == "no: 3 image items, limit_mm_per_prompt admits 2"
    assert found.remedy == "split into 2 prompts or calibrate again with --count image=3"
    # Whatever each costs.
    unbounded = replace(GATE, rules={})
    assert prompt(unbounded, [PAGE, ImageShape(9, 9)]).answer == "unknown"
    assert prompt(unbounded, [ImageShape(9, 9)] * 3).answer == "no"


def test_the_items_of_a_prompt_leave_room_for_an_answer() -> None:
    """vLLM refuses a prompt as long as the context."""
    assert prompt(replace(GATE, max_model_len=2539), [PAGE, PAGE]).answer == "fits"
    found = prompt(replace(GATE, max_model_len=2538), [PAGE, PAGE])
    assert said(found) == "no: 2538 tokens of media + 0 of text, max_model_len is 2538"
    assert found.remedy == "split into 2 prompts"


def test_an_answer_for_which_too_little_is_left_is_said() -> None:
    """vLLM cuts such an answer, it refuses none."""
    gate = replace(GATE, max_model_len=3500)
    left = "leaving 962 tokens for the answer, 1024 reserved"
    assert said(prompt(gate, [PAGE, PAGE])) == f"fits: 2538 tokens of media + 0 of text, {left}"
    assert prompt(gate, [PAGE, PAGE], answer_tokens=962).reason.endswith("0 of text")
    assert prompt(gate, [PAGE, PAGE], answer_tokens=963).reason.endswith("963 requested")


def test_an_answer_longer_than_the_context_is_refused() -> None:
    """vLLM says "max_tokens cannot be greater"."""
    assert prompt(GATE, [], answer_tokens=4096).fits
    found = prompt(GATE, [], answer_tokens=4097)
    assert (found.answer, found.remedy) == ("no", "set max_tokens between 1 and 4096")
    assert found.reason == "it requests 4097 tokens, max_model_len is 4096"


def test_an_answer_has_the_least_that_it_must_have() -> None:
    """`min_tokens` is the least."""
    assert prompt(GATE, [], answer_tokens=30, least_answer_tokens=30).fits
    found = prompt(GATE, [], answer_tokens=29, least_answer_tokens=30)
    assert (found.answer, found.remedy) == ("no", "set max_tokens between 30 and 4096")
    assert found.reason == "it requests 29 tokens, fewer than its minimum of 30"
    assert prompt(replace(GATE, max_model_len=2568), [PAGE, PAGE], least_answer_tokens=30).fits
    found = prompt(replace(GATE, max_model_len=2567), [PAGE, PAGE], least_answer_tokens=30)
    needed = "2538 tokens of media + 0 of text + at least 30 of answer"
    assert said(found) == f"no: {needed}, max_model_len is 2567"
    assert found.remedy == "split into 2 prompts"


def test_a_long_text_may_decide() -> None:
    """A text may be exactly as long as the room."""
    assert prompt(GATE, [PAGE, PAGE], 1557).fits
    found = prompt(GATE, [PAGE, PAGE], 1558)
    assert (found.answer, found.remedy) == ("unknown", "split into 2 prompts")
    assert prompt(GATE, [PAGE], 5000).remedy == "shorten the text"


def test_a_text_that_was_counted_takes_the_place_of_its_bound() -> None:
    asked = RequestText(text_bytes=9000)
    assert admit_prompt(GATE, [PAGE], asked).answer == "unknown"
    assert admit_prompt(GATE, [PAGE], asked, TokenRange.exactly(2826)).answer == "fits"
    assert admit_prompt(GATE, [PAGE], asked, TokenRange.exactly(2827)).answer == "no"


def test_what_nothing_bounds_is_unknown() -> None:
    tooled, odd = RequestText(tool_bytes=9), RequestText(plain=False)
    bound = TextBound(compared=1)
    assert admit_prompt(replace(GATE, text=bound), [], tooled).answer == "unknown"
    assert admit_prompt(replace(GATE, text=bound), [], odd).answer == "unknown"
    gate, asked = replace(GATE, text=replace(bound, refuses_orders=True)), RequestText()
    assert admit_prompt(gate, [], asked).answer == "fits"
    asked = replace(asked, alternates=False)
    found = admit_prompt(gate, [], asked)
    assert add_prompt_remedy(gate, [], asked, found).remedy.startswith("let user and assistant ")
    assert found.answer == "unknown"
    assert admit_prompt(gate, [], asked, TokenRange.exactly(9)).answer == "fits"
    found = prompt(replace(GATE, text=TextBound()), [PAGE])
    assert found.answer == "unknown"
    assert found.remedy.startswith("this model's text has no known limit:")


def test_items_of_an_encoder_decoder_model_are_no_part_of_its_context() -> None:
    """Whisper's clips have 1,500 tokens, its context 448."""
    clip = AudioShape(480_000, 16_000)
    gate = replace(
        GATE,
        max_model_len=448,
        text_reserve_tokens=224,
        counts={"audio": 1},
        known_costs={clip: ShapeCost(1500, 1500, "real")},
        encoder_decoder=True,
    )
    assert admit(gate, clip).answer == "fits"
    # Larger than the whole context, as the reserve of a run that was not told one.
    assert admit(replace(gate, text_reserve_tokens=1024), clip).answer == "fits"
    gate = replace(gate, text=TextBound(item_tokens={"audio": 0}, compared=1))
    assert said(prompt(gate, [clip], 447)).startswith("fits: at most 447 tokens of text,")
    long = said(prompt(gate, [clip], 448))
    assert long == "unknown: at most 448 tokens of text, max_model_len is 448"
    found = prompt(replace(gate, text=TextBound()), [clip])
    assert said(found) == "unknown: text of unknown length, max_model_len is 448"
    assert found.remedy.startswith("not a chat model: check the file alone")
    assert admit(replace(gate, budget_tokens=1499), clip).answer == "no"


def test_the_item_that_does_not_fit_decides_for_its_prompt() -> None:
    assert said(prompt(GATE, [PAGE, SLIVER])) == "no: vLLM: aspect ratio"
    assert count_prompts(GATE, [PAGE, SLIVER], RequestText()) is None


images = st.builds(ImageShape, st.integers(1, 6000), st.integers(1, 6000))
videos = st.builds(
    lambda frames, fps, width, height: VideoShape(frames, fps, frames / fps, width, height),
    st.integers(1, 3000),
    st.sampled_from([1.0, 12.5, 23.976, 30.0, 60.0]),
    st.integers(1, 2000),
    st.integers(1, 2000),
)
shapes = st.one_of(images, videos, st.sampled_from([PAGE, SLIVER, TALL]))


@given(shapes, st.integers(1, 20000), st.integers(0, 20000), st.integers(0, 20000))
def test_more_room_never_makes_an_answer_worse(shape, budget, more_budget, more_context) -> None:
    small = replace(GATE, budget_tokens=budget)
    large = replace(
        small, budget_tokens=budget + more_budget, max_model_len=small.max_model_len + more_context
    )
    before, after = admit(small, shape).answer, admit(large, shape).answer
    assert ORDER.index(after) >= ORDER.index(before)


@given(st.lists(shapes, max_size=4), st.integers(0, 5000), st.integers(0, 20000))
def test_more_room_never_hurts_a_prompt(found: list[Shape], text: int, more: int) -> None:
    large = replace(GATE, max_model_len=GATE.max_model_len + more)
    asked = RequestText(text_bytes=text)
    before = admit_prompt(GATE, found, asked).answer
    assert ORDER.index(admit_prompt(large, found, asked).answer) >= ORDER.index(before)


@given(shapes)
def test_the_largest_that_is_named_fits(shape: Shape) -> None:
    """There is one of every picture that is not too slim at any size; clips may be too short."""
    found = remedied(GATE, shape)
    if found.largest is None:
        assert found.fits or isinstance(shape, VideoShape) or is_slim(shape)
        return
    assert not found.fits
    assert admit(GATE, found.largest).fits
    assert weight(found.largest) < weight(shape)


def is_slim(shape: Shape) -> bool:
    """Close to what the processor refuses, where rounding of the sides decides."""
    assert not isinstance(shape, AudioShape)
    sides = shape.width_px, shape.height_px
    return max(sides) > AREA.max_aspect / 2 * min(sides)


def test_a_modality_that_is_not_served_does_not_fit() -> None:
    clip = AudioShape(16000, 16000)
    assert remedied(GATE, clip).remedy == "calibrate again with --count audio=1"
    never = replace(GATE, counts={"image": 1})
    assert remedied(never, clip).reason == "the model does not take audio"


def test_a_chat_ends_at_the_limit_that_vllm_checks_first() -> None:
    """vLLM keeps one of 4,096 tokens for the answer: 90 + 116 + 2 × 1,269 = 2,744 fit in 4,095,
    and 90 + 2 × 116 + 3 × 1,269 = 4,129 do not.
    """
    text, page, many = ChatText(90, 116), GATE.known_costs[PAGE], replace(GATE, counts={"image": 9})
    assert fit_chat(many, PAGE, page, text) == ChatFit(2, "max_model_len", 2)
    assert fit_chat(replace(many, max_model_len=2745), PAGE, page, text).items == 2
    assert fit_chat(replace(many, max_model_len=2744), PAGE, page, text).items == 1
    # The third item exceeds the count too, which vLLM finds before it renders the prompt.
    assert fit_chat(GATE, PAGE, page, text) == ChatFit(2, "limit_mm_per_prompt", 2)
    small = ShapeCost(100, 100, "counted")
    assert fit_chat(many, PAGE, small, text) == ChatFit(9, "limit_mm_per_prompt", 19)
    # The encoder cache holds each item by itself, so many fit in turn, but none that exceeds it.
    large = ShapeCost(1269, 2001, "counted")
    assert fit_chat(many, PAGE, large, text) == ChatFit(0, "encoder cache", 0)
    server = Server(limits={REQUEST_BYTES: 7 * 1316 * 756})
    found = fit_chat(replace(many, server=server), PAGE, small, text)
    assert (found.items, found.limit) == (1, REQUEST_BYTES)


def test_without_texts_each_turn_fills_the_reserve() -> None:
    """A prompt has 1,269 tokens and the whole reserve."""
    text, page = ChatText.of_reserve(1024), GATE.known_costs[PAGE]
    assert text.assumed
    for context, items in ((2 * 2293, 2), (2 * 2293 - 1, 1), (2292, 0)):
        gate = replace(GATE, max_model_len=context, counts={"image": 9})
        assert fit_chat(gate, PAGE, page, text).items == items
