"""The parts of the conformance suite that need no server: what is drawn, judged, kept and said."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from judging import clips, images, page, sounds
from judging.composition import MOST_ITEMS, Composition
from judging.drawing import drawn, shrunk
from judging.pool import Pool
from judging.request import EXTRAS, Item, Order, Request, Room, Turn, body, lengthened, summary
from judging.results import Example, Result, Results, keep_example, kept_examples
from judging.subject import SUBJECTS, subject
from judging.trial import Plan, hear
from judging.verdict import Verdict

PICTURE = Request((Turn(items=(Item("image-28x28.png"),)),))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """A few of each kind, the largest left out."""
    few = [list(made)[:12] for made in (images.MAKERS, clips.MAKERS, sounds.MAKERS)]
    named = ["image-28x28.png", "image-RGB.png", "image-6000x4000.jpg", "video-2.frames"]
    return Pool(tmp_path_factory.mktemp("pool"), [*named, *(name for some in few for name in some)])


def result(order: Order = (PICTURE,), **changes: Any) -> Result:
    verdicts = tuple(Verdict("fits", "64 tokens", 200, "") for _ in order)
    made = Result("qwen3-vl", "alone-1", 0, "these", order, verdicts, 0.1)
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("answer", "status", "kind"),
    [
        ("fits", 200, "served"),
        ("fits", 400, "broken promise"),
        ("fits", 500, "failure"),
        ("no", 500, "refused by 5xx"),
        ("no", 0, "failure"),
        ("unknown", 0, "failure"),
        ("no", 200, "false refusal"),
        ("no", 413, "refused"),
        ("unknown", 200, "unknown"),
        ("unknown", 400, "unknown"),
    ],
)
def test_two_answers_are_one_verdict(answer: str, status: int, kind: str) -> None:
    verdict = Verdict(answer, "why", status, "said")
    assert verdict.kind == kind
    assert verdict.disagrees == (kind in ("broken promise", "failure", "false refusal"))


def test_what_is_served_when_it_is_sent_again_is_no_failure() -> None:
    assert Verdict("fits", "", 500, "Internal server error", again=200).kind == "served again"
    assert Verdict("fits", "", 500, "Internal server error", again=500).kind == "failure"


def test_one_fault_is_one_cause_whatever_it_was_met_with() -> None:
    said = "cannot open /a/b/image-{0}.png: {0} > 12"
    first, second = (Verdict("fits", "", 400, said.format(n)) for n in (3, 45.5))
    assert first.cause == second.cause
    assert first.cause != replace(first, status=500).cause


@pytest.mark.parametrize("key", [one.key for one in SUBJECTS])
def test_a_seed_draws_the_same_requests_again(key: str, pool: Pool) -> None:
    strategy = Composition(subject(key), pool).requests()
    first = drawn(strategy, 40, 7)
    assert first == drawn(strategy, 40, 7)
    assert len(set(first)) == len(first)
    assert first != drawn(strategy, 40, 8)


def test_requests_are_of_every_kind(pool: Pool) -> None:
    found = drawn(Composition(subject("qwen3-vl"), pool).requests(), 400, 1)
    items = [item for one in found for item in one.items]
    assert {item.via for item in items} >= {"file", "data"}
    assert {item.medium for item in items} >= {
        name for kind in ("image", "video") for name in pool.of(kind, heavy=False)
    }
    assert {len(one.items) for one in found} == set(range(MOST_ITEMS + 1))
    assert {one.room.what for one in found if one.room} == {
        *("text", "max_tokens", "max_completion_tokens")
    }
    assert len({one.extra for one in found} & set(EXTRAS)) > 4
    assert any(one.tools for one in found)
    assert any(len(one.turns) > 100 for one in found)


def test_what_fails_is_shrunk_to_the_least_that_fails(pool: Pool) -> None:
    strategy = Composition(subject("qwen3-vl"), pool).requests()
    asked: list[Request] = []

    def two_items(request: Request) -> bool:
        asked.append(request)
        return len(request.items) >= 2

    known = {one: len(one.items) >= 2 for one in drawn(strategy, 60, 3)}
    smallest = shrunk(strategy, 60, 3, two_items, dict(known), seconds=60)
    assert smallest is not None
    assert len(smallest.items) == 2
    assert len(smallest.turns) == 1
    assert not set(asked) & set(known), "asked again what was known"


def test_nothing_is_shrunk_that_does_not_fail(pool: Pool) -> None:
    strategy = Composition(subject("internvl"), pool).requests()
    assert shrunk(strategy, 20, 3, lambda request: False, {}, seconds=5) is None


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Results(path, "these").add(result())
    Results(path, "others").add(result(number=1, made_of="others"))
    path.write_text(path.read_text("utf-8") + '{"subject": "qw', "utf-8")
    again = Results(path, "these")
    assert list(again) == [result()]
    assert again.get("qwen3-vl", "alone-1", 0, (PICTURE,)) == result()
    assert again.get("qwen3-vl", "alone-1", 0, (PICTURE, PICTURE)) is None
    again.add(result(number=2))
    assert list(Results(path, "these")) == [result(), result(number=2)]


def test_an_example_is_kept_once_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "examples.jsonl"
    turn = Turn("system", 0, (Item("audio-1s.wav", "data"),), 2, "emoji")
    order = (PICTURE, Request((turn,), None, "max_completion_tokens", 3, Room("text", -2)))
    example = Example("qwen3-vl", "failure: words", order)
    assert keep_example(path, example)
    assert not keep_example(path, example)
    assert kept_examples(path) == [example]


def test_a_request_is_the_body_that_it_says(pool: Pool) -> None:
    frames = Item("video-2.frames", "data")
    sent = body(Request((Turn(items=(frames, Item("image-RGB.png", "http"))),)), pool, "http://web")
    clip, picture = sent["messages"][0]["content"][1:]
    assert clip["video_url"]["url"].startswith("data:video/jpeg;base64,")
    assert clip["video_url"]["url"].count(",") == 2
    assert picture["image_url"]["url"] == "http://web/image-RGB.png"
    assert sent["max_tokens"] == 1
    wrapped = body(Request((Turn(items=(Item("image-RGB.png", "wrapped"),)),)), pool, "")
    assert "\n" in wrapped["messages"][0]["content"][1]["image_url"]["url"]
    longer = lengthened(sent, "text", 5)
    assert longer["messages"][0]["content"][-1] == {"type": "text", "text": "aaaaa"}
    answering = lengthened(sent, "max_completion_tokens", 9)
    assert "max_tokens" not in answering
    assert answering["max_completion_tokens"] == 9


def test_the_page_counts_and_judges() -> None:
    rows = list(page.asked([result()]))
    assert page.passes(rows)
    assert not page.passes([])
    refused = result(verdicts=(Verdict("fits", "1 | `token`", 400, "no\n# such"),))
    rows += page.asked([refused])
    assert not page.passes(rows)
    text = page.page(rows, ["About."], [])
    assert "| qwen3-vl | image | 2 | 1 | 0 | 0 | 0 | 0 | 1 | 0 | 0 |" in text
    assert "1 × broken promise: no # such" in text
    assert f"`{summary(PICTURE)}`: check: fits, 1 \\| 'token'; server: 400 no # such" in text


def test_one_false_refusal_in_a_hundred_passes() -> None:
    refused = result(verdicts=(Verdict("no", "too large", 200, ""),))
    served = [result(number=number) for number in range(99)]
    assert page.passes(list(page.asked([*served, refused])))
    assert not page.passes(list(page.asked([*served, refused, refused])))


class Pretend:
    """A server that takes one item and no more, beside a `check` that lets two in, too."""

    def __init__(self) -> None:
        self.asked: list[Order] = []
        self.fresh_at: set[int] = set()

    def lets_in(self, order: Order) -> bool:
        return all(len(one.items) < 2 for one in order)

    def forget(self) -> None:
        self.fresh_at.add(len(self.asked))

    def in_order(self, order: Order) -> list[Verdict]:
        self.asked.append(order)
        return [
            Verdict("fits", "", 400, "too many")
            if len(one.items) > 1
            else Verdict("fits", "", 200, "")
            for one in order
        ]


def heard(pool: Pool, folder: Path, judge: Pretend, *, seconds: float = 300) -> list[Result]:
    plan = Plan(60, 1, time.monotonic() + seconds, folder / "examples.jsonl", shrink=True)
    results = Results(folder / "results.jsonl", "these")
    return hear(subject("internvl"), judge, pool, results, plan, lambda said: None)


def test_a_hearing_keeps_the_least_that_fails_and_is_not_held_twice(
    pool: Pool, tmp_path: Path
) -> None:
    first = Pretend()
    found = heard(pool, tmp_path, first)
    assert {item.medium for one in found for request in one.order for item in request.items} >= set(
        pool.of("image", heavy=False)
    )
    (kept,) = kept_examples(tmp_path / "examples.jsonl")
    assert kept.cause == "broken promise: too many"
    assert [[len(turn.items) for turn in one.turns] for one in kept.order] == [[2]]
    again = Pretend()
    assert set(heard(pool, tmp_path, again)) > set(found)
    # What it kept, and whether the cause still holds.
    assert again.asked[0] == kept.order
    assert len(again.asked) < len(first.asked) / 2


def test_what_check_refuses_leaves_nothing_to_what_it_lets_in(pool: Pool, tmp_path: Path) -> None:
    judge = Pretend()
    heard(pool, tmp_path, judge)
    refused = {i for i, order in enumerate(judge.asked) if not judge.lets_in(order)}
    assert refused
    assert refused <= judge.fresh_at
    assert {i + 1 for i in refused} - {len(judge.asked)} <= judge.fresh_at


def test_nothing_is_begun_after_the_deadline(pool: Pool, tmp_path: Path) -> None:
    judge = Pretend()
    assert heard(pool, tmp_path, judge, seconds=-1) == []
    assert judge.asked == []
