"""Prompts that are answered, and prompts that are only taken in."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mmcalib.checks.check import Check
from mmcalib.checks.engine import replay_check
from mmcalib.corpus.chat import ChatRequest, url_part
from mmcalib.domain.items import Skipped
from mmcalib.domain.shapes import ImageShape
from mmcalib.domain.traffic import BurstResult, PromptOutcome
from mmcalib.proof import replay
from mmcalib.releases.constants import NO_CHAT_TEMPLATE
from mmcalib.storage.location import url_of
from tests.workflows.corpora import corpus, decide, many_images, path_of, pretended

LARGE, MIDDLE = ImageShape(2800, 2240), ImageShape(560, 560)  # 8,000 and 400 tokens
SMALL = ImageShape(280, 280)  # 100 tokens


def chosen(requests: list[list[ImageShape]], step: int, affordable: float = 1e9) -> replay.Burst:
    read = corpus([], requests)
    decision = decide(read)
    return replay.choose_heaviest(read.prompts, decision, step, affordable)


def checked(burst: replay.Burst, replayed: BurstResult) -> Check:
    return replay_check(burst, replayed, replay.mismatched_prompts(burst, replayed), 8000)


def test_the_heaviest_fill_a_step_and_every_other_kind_is_taken_in() -> None:
    found = chosen([[LARGE], [SMALL], [SMALL, SMALL], [SMALL]], step=8000)
    assert [prompt.origin for prompt in found.prompts] == ["r.jsonl:1"]
    assert [prompt.item_tokens for prompt in found.admit] == [(100, 100), (100,)]
    assert found.fills_step
    decision = decide(read := corpus(many_images(20)))
    own = replay.choose_heaviest(read.prompts, decision, 1, 1e9)
    assert (len(own.prompts), len(own.admit), own.unseen) == (1, 1, 18)


def test_a_step_that_memory_does_not_hold_is_not_replayed(tmp_path: Path) -> None:
    read = corpus([], [[LARGE], [MIDDLE]])
    decision = decide(read)
    seconds = {"encoder_seconds_per_token": None, "profile_estimate_s": 0.0, "profile_s": None}
    figures: Any = SimpleNamespace(**seconds, most_step_tokens=500, budget_tokens=8000)
    burst = replay.choose_burst(read.prompts, decision, figures, 90.0, tmp_path, pretended)
    assert [prompt.item_tokens for prompt in burst.prompts] == [(400,)]
    assert (burst.too_heavy, burst.made_up) == (1, 0)


def test_what_is_too_heavy_to_answer_is_still_taken_in() -> None:
    found = chosen([[LARGE], [SMALL]], step=8000, affordable=500)
    assert [prompt.item_tokens for prompt in found.prompts] == [(100,)]
    assert [prompt.item_tokens for prompt in found.admit] == [(8000,)]
    assert found.too_heavy == 1


def test_a_prompt_that_is_not_taken_in_fails_the_check() -> None:
    found = chosen([[LARGE], [SMALL]], step=8000)
    answered = (PromptOutcome("r.jsonl:1", "", (8000,)),)
    good = BurstResult(answered, 1.0, 8000, (PromptOutcome("r.jsonl:2", "", (100,)),))
    check = checked(found, good)
    assert check.status == "pass"
    assert "1 of the heaviest prompts answered at once, 1 other admitted" in check.detail
    refused = BurstResult(answered, 1.0, 8000, (PromptOutcome("r.jsonl:2", "too long", ()),))
    assert checked(found, refused).detail == "r.jsonl:2: too long"
    differing = BurstResult(answered, 1.0, 8000, (PromptOutcome("r.jsonl:2", "", (99,)),))
    assert "measured (100,), engine (99,)" in checked(found, differing).detail


def test_a_model_that_cannot_chat_is_asked_nothing_and_only_a_limit_is_to_be_raised() -> None:
    found = chosen([[LARGE], [SMALL]], step=8000)
    no_template = f"default chat template is no longer allowed, so {NO_CHAT_TEMPLATE}"
    check = checked(found, BurstResult((PromptOutcome("r.jsonl:1", no_template, ()),), 1.0, 0))
    assert (check.status, "no chat template" in check.detail) == ("skip", True)
    for words, cure in {
        "At most 1 image(s) may be provided in one prompt.": "raise the limit that the error names",
        "unknown role": "correct these requests, or --validate startup",
    }.items():
        refused = BurstResult((PromptOutcome("r.jsonl:1", words, ()),), 1.0, 0)
        assert checked(found, refused).remedy == cure


def test_a_corpus_too_small_to_fill_a_step_is_filled_with_blanks_of_its_shapes(tmp_path) -> None:
    read = corpus([], [[LARGE], [SMALL]])
    decision = decide(read)
    own = replay.choose_heaviest(read.prompts, decision, 16_250, 1e9)
    assert (own.encoder_tokens, own.fills_step) == (8100, False)
    found = replay.pad_burst(own, decision, 16_250, 1e9, tmp_path)
    assert found.made_up == 2
    assert [prompt.item_tokens for prompt in found.prompts] == [(8000,), (100,), (8000,), (100,)]
    assert (found.encoder_tokens, found.fills_step) == (16_200, True)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 2


def test_what_cannot_be_read_is_made_up(tmp_path) -> None:
    read = corpus([], [[LARGE], [SMALL]])
    decision = decide(read)
    own = replay.choose_heaviest(read.prompts, decision, 8_000, 1e9)
    asked = ChatRequest.of_user([url_part("image_url", url_of(path_of(LARGE)))])
    own = replace(own, prompts=tuple(replace(p, request=asked) for p in own.prompts))
    left = replay.attach_files(
        own, lambda media: [Skipped(p, "gone", out_of_reach=True) for _, p in media]
    )
    assert (left.prompts, left.encoder_tokens, left.unreadable) == ((), 0, 1)
    found = replay.pad_burst(left, decision, 8_000, 1e9, tmp_path)
    assert (found.made_up, found.encoder_tokens, found.fills_step) == (1, 8_000, True)
