"""A corpus of more shapes than are processed costs what processing them all says."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from mmcalib.decision.measure import find_same_cost
from mmcalib.domain.knobs import Setting
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, weight
from mmcalib.engine.messages import Blank, CountEmbeds, EmbedCounts, Measure, Measured
from mmcalib.limits.costs import CostTable
from mmcalib.limits.counting import PROBES, PROBES_AGAIN
from mmcalib.limits.policy import Policy
from tests.workflows.corpora import corpus, decide, many_images
from tests.workflows.fake_host import FakeHost, Uncounted, opened

SHAPES = many_images(1_000)


class Counting(FakeHost):
    """Notes which stand-ins it processed under the default, and which to cost the chosen one."""

    processed: tuple[Shape, ...] = ()
    again: tuple[Shape, ...] = ()

    def measure(self, request: Measure, doing: str) -> Iterator[Measured]:
        blanks = (s.shape for s in request.subjects if isinstance(s, Blank))
        if not request.setting.mm_processor_kwargs:
            type(self).processed += tuple(blanks)
        elif doing == "measuring costs":
            type(self).again += tuple(blanks)
        return super().measure(request, doing)


class OneTooMany(Counting):
    """A host whose count is wrong for its heaviest item."""

    def count(self, request: CountEmbeds) -> EmbedCounts:
        found = super().count(request)
        most = max(e or 0 for e in found.embeds)
        return replace(found, embeds=tuple((e or 0) + (e == most) for e in found.embeds))


class OddBytes(Counting):
    """A host whose tensors do not follow from the tokens."""

    def cost(self, shape: Shape, kwargs: Mapping[str, Any]) -> Cost:
        found = super().cost(shape, kwargs)
        odd = isinstance(shape, ImageShape) and shape.width_px % 3
        return replace(found, tensor_bytes=found.tensor_bytes + int(odd))


def known(table: CostTable) -> dict[Shape, tuple[int, int, int, int]]:
    return {s: (c.tokens, c.embeds, c.tensor_bytes, c.count) for s, c in table.costs.items()}


@pytest.fixture(scope="module")
def processed():
    return decide(corpus(SHAPES), host=Uncounted)


def test_counting_gives_what_processing_gives(processed) -> None:
    Counting.processed = ()
    found = decide(corpus(SHAPES), host=Counting)
    assert len(set(Counting.processed)) == PROBES
    assert found.default_table.witnesses == {"image": PROBES}
    assert {c.basis for c in found.default_table.costs.values()} == {"real", "blank", "counted"}
    for one, other in (
        (found.default_table, processed.default_table),
        (found.table, processed.table),
    ):
        assert known(one) == known(other)
        assert list(one.costs) == list(other.costs)
    assert found.engine_args == processed.engine_args
    assert found.budget == processed.budget


@pytest.mark.parametrize("at_most", [4_000, 600, 100])
def test_under_the_chosen_setting_what_it_changes_is_witnessed_and_little_else(
    processed, at_most: int
) -> None:
    Counting.again = ()
    policy = Policy(max_tokens_per_item=at_most)
    found = decide(corpus(SHAPES), host=Counting, policy=policy)
    before = {s: c.embeds for s, c in found.default_table.costs.items()}
    moved = {s for s, c in found.table.costs.items() if c.embeds != before[s]}
    again: set[Shape] = set(Counting.again)
    assert moved
    assert len(again & moved) == min(PROBES, len(moved))
    left = len(before) - len(moved)
    assert len(again - moved) == min(PROBES_AGAIN, left)
    whole = decide(corpus(SHAPES), host=Uncounted, policy=policy)
    assert known(found.table) == known(whole.table)


class OneTooManyAgain(Counting):
    """A host whose count is wrong for its lightest item as soon as there is a cap."""

    def count(self, request: CountEmbeds) -> EmbedCounts:
        found = super().count(request)
        if not request.setting.mm_processor_kwargs:
            return found
        least = min(e or 0 for e in found.embeds)
        return replace(found, embeds=tuple((e or 0) + (e == least) for e in found.embeds))


def test_a_count_that_is_wrong_under_the_chosen_setting_alone_is_not_used() -> None:
    OneTooManyAgain.again = ()
    found = decide(corpus(SHAPES), host=OneTooManyAgain, policy=Policy(max_tokens_per_item=600))
    assert set(OneTooManyAgain.again) == set(SHAPES)
    assert found.table.witnesses == {}


@pytest.mark.parametrize("host", [OneTooMany, OddBytes])
def test_one_disagreement_and_all_are_processed(host: type[Counting]) -> None:
    host.processed = ()
    found = decide(corpus(SHAPES), host=host)
    assert found.default_table.witnesses == {}
    assert set(host.processed) == set(SHAPES)
    assert not any(c.basis == "counted" for c in found.default_table.costs.values())


def test_the_size_at_which_tokens_stop_growing_is_found_by_counting() -> None:
    """147 × 110 tokens of 28 × 28 pixels stay below 16,384."""
    huge = ImageShape(8000, 6000)
    found = find_same_cost(FakeHost(opened()), Setting(), huge, None)  # type: ignore[arg-type]
    assert found is not None
    assert weight(found) == pytest.approx(147 * 110 * 784, rel=0.01)
    blind = Uncounted(opened())
    assert find_same_cost(blind, Setting(), huge, None) is None  # type: ignore[arg-type]


class Enlarging(Counting):
    """Enlarges small items to 256 tokens, except tiny ones."""

    def count(self, request: CountEmbeds) -> EmbedCounts:
        found = super().count(request)
        counted = (embeds or 0 for embeds in found.embeds)
        return replace(found, embeds=tuple(n if n < 9 else max(n, 256) for n in counted))


def test_an_item_that_the_model_enlarges_loses_no_detail() -> None:
    host = Enlarging(opened())
    assert find_same_cost(host, Setting(), ImageShape(320, 240), None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "kept_s"), [(600, 30), (60, 30), (33, 30), (31, None)])
def test_sound_that_takes_no_more_tokens_is_lost(seconds: int, kept_s: int | None) -> None:
    """The model hears 30 seconds."""
    sound = AudioShape(seconds * 44_100, 44_100)
    found = find_same_cost(FakeHost(opened()), Setting(), sound, None)  # type: ignore[arg-type]
    assert (found is None) == (kept_s is None)
    if isinstance(found, AudioShape):
        assert found.duration_s == pytest.approx(kept_s, rel=0.01)


class Padding(Counting):
    """Makes as many tokens of every sound, as Whisper does of its 30 seconds."""

    def count(self, request: CountEmbeds) -> EmbedCounts:
        found = super().count(request)
        return replace(found, embeds=(1500,) * len(found.embeds))


def test_the_length_that_a_model_pads_to_is_said_at_the_rate_of_the_file() -> None:
    sound, hears = AudioShape(60 * 44_100, 44_100), AudioShape(480_000, 16_000)
    found = find_same_cost(Padding(opened()), Setting(), sound, hears)  # type: ignore[arg-type]
    assert found == AudioShape(30 * 44_100, 44_100)
