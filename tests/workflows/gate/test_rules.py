"""Rules are kept only where they say what the processor did."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from mmcalib.admission.rules import ProvenRule, list_costs, prove_rules
from mmcalib.checks.facts import Decision
from mmcalib.decision.texts import Texts
from mmcalib.domain.model import Cost, ModelInfo
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.messages import Blank, Measure, Measured
from mmcalib.errors import EngineDied, EngineError, VllmRefused
from mmcalib.gate.admission import admit
from mmcalib.gate.bounds import Area, Ceiling, Frames, Ladder
from mmcalib.limits.policy import Policy
from mmcalib.progress import Silent
from mmcalib.results.costs import Costs, build_gate
from tests.builders import some
from tests.workflows.corpora import corpus, decide, many_images, path_of
from tests.workflows.fake_host import AUDIO_HZ, EDGE, UNIT, FakeHost, cap, opened, slenderness

A, B = ImageShape(280, 280), ImageShape(560, 280)
CLIP = VideoShape(100, 10.0, 10.0, 280, 280)
SOUND = AudioShape(160_000, AUDIO_HZ)
NO_TEXTS = Texts(FakeHost(opened()))  # type: ignore[arg-type]


class Refusing(FakeHost):
    """Has words for shapes that it does not take."""

    def refusal(self, shape: Shape) -> str:
        return ""

    def measure(self, request: Measure, doing: str) -> Iterator[Measured]:
        for answer, subject in zip(super().measure(request, doing), request.subjects, strict=True):
            words = self.refusal(subject.shape) if isinstance(subject, Blank) else ""
            yield Measured(None, words) if words else answer


class Resizing(Refusing):
    """Resizes as the Qwen-VL processors do, the least number of pixels included."""

    def refusal(self, shape: Shape) -> str:
        if isinstance(shape, VideoShape) and slenderness(shape) > 200:
            return "absolute aspect ratio must be smaller than 200"
        return ""

    def cost(self, shape: Shape, kwargs: Mapping[str, Any]) -> Cost:
        if isinstance(shape, AudioShape):
            return super().cost(shape, kwargs)
        area = Area(EDGE, 4 * UNIT, cap(shape.modality, kwargs), 200.0)
        cells = area.cells(shape.width_px, shape.height_px)
        if isinstance(shape, ImageShape):
            return Cost(cells, cells, 0, 0.0, 0.0, (shape.width_px, shape.height_px))
        kept = min(32, shape.num_frames)
        tokens = -(-kept // 2) * cells
        return Cost(tokens, tokens, 0, 0.0, 0.0, (kept, shape.width_px, shape.height_px))


class OneSize(Refusing):
    """Makes 256 tokens of every picture that is not tiny, and two more around them."""

    def refusal(self, shape: Shape) -> str:
        assert isinstance(shape, ImageShape)
        return "too small" if min(shape.width_px, shape.height_px) < 8 else ""

    def cost(self, shape: Shape, kwargs: Mapping[str, Any]) -> Cost:
        return Cost(258, 256, 0, 0.0, 0.0, (896, 896))


class Falling(FakeHost):
    """Makes less of more sound, once."""

    def cost(self, shape: Shape, kwargs: Mapping[str, Any]) -> Cost:
        found = super().cost(shape, kwargs)
        if isinstance(shape, AudioShape) and shape.duration_s == 10:
            return replace(found, tokens=3)
        return found


def proven(
    shapes: list[Shape], host: type[FakeHost], model: ModelInfo | None = None
) -> dict[Modality, ProvenRule]:
    model = model or opened()
    files = {path_of(shape): shape for shape in shapes}
    decision = decide(corpus(shapes), model=model, host=host)
    return prove_rules(host(model, files), model, decision, Silent())  # type: ignore[arg-type]


def test_a_resizing_rule_is_kept_with_the_numbers_of_the_setting() -> None:
    found = proven([A, B, CLIP], Resizing)
    image, video = found["image"].rule, found["video"].rule
    assert image == Area(EDGE, 4 * UNIT, 200 * UNIT, 200.0)
    assert isinstance(video, Frames)
    assert (video.sampling.loader, video.sampling.num_frames) == ("uniform", 32)
    assert found["image"].compared > 30


def test_a_rule_that_says_otherwise_than_the_processor_is_dropped() -> None:
    """The pretend model makes single tokens of the smallest pictures, its numbers say four."""
    assert proven([A, B, CLIP], FakeHost) == {}


def test_one_size_has_a_ceiling() -> None:
    found = proven([A], OneSize, opened({"image": None}, knobs=()))
    assert found["image"].rule == Ceiling(258, 256, min_side_px=8, max_aspect=100.0)


def test_sounds_lie_on_a_ladder() -> None:
    found = proven([SOUND], FakeHost)["audio"].rule
    assert isinstance(found, Ladder)
    assert found.rungs[0].samples == 1
    # The last is what resampling may add to the server's limit of 600 s.
    ends = [31 * AUDIO_HZ, 600 * AUDIO_HZ, 600.02 * AUDIO_HZ]
    assert [r.samples for r in found.rungs[-3:]] == ends
    assert [r.tokens for r in found.rungs] == sorted(r.tokens for r in found.rungs)


def test_there_is_no_ladder_where_more_sound_costs_less() -> None:
    assert proven([SOUND], Falling) == {}


def test_a_failed_question_leaves_no_rule_and_a_dead_engine_ends_the_run() -> None:
    class Failing(Resizing):
        error: EngineError = VllmRefused("no")

        def measure(self, request: Measure, doing: str) -> Any:
            if doing == "bounding unseen shapes":
                raise self.error
            return super().measure(request, doing)

    assert proven([A], Failing) == {}
    Failing.error = EngineDied("gone")
    with pytest.raises(EngineDied):
        proven([A], Failing)


def kept(found: list[ImageShape], odd: ImageShape | None = None) -> tuple[Decision, Costs]:
    files = {path_of(odd): ImageShape(280, 280)} if odd else None
    decision = decide(corpus(found), host=Resizing, files=files)
    host = Resizing(opened(), {path_of(shape): shape for shape in found})
    rules = prove_rules(host, opened(), decision, Silent())  # type: ignore[arg-type]
    return decision, list_costs(decision, Policy(), rules, NO_TEXTS)


def test_the_gate_knows_each_to_the_token_all_the_same() -> None:
    decision, found = kept(many_images(2_500))
    part = found.modalities["image"]
    unlisted = some(part.unlisted)
    assert len(part.known) == 1_000
    assert unlisted.shapes == len(decision.table.costs) - 1_000
    gate = build_gate(found, decision.engine_args, decision.budget.encoder_budget_tokens)
    for shape, cost in decision.table.costs.items():
        admission = admit(gate, shape)
        assert (admission.tokens, admission.embeds) == (cost.tokens, cost.embeds)
    assert min(one.tokens for one in part.known) >= unlisted.tokens[-1].least_tokens
    assert sum(b.items for b in unlisted.tokens) == unlisted.shapes
    assert sum(cell.shapes for cell in unlisted.sizes) == unlisted.shapes


def test_the_document_does_not_grow() -> None:
    _, few = kept(many_images(1_500))
    _, many = kept(many_images(6_000))
    assert len(many.model_dump_json()) < 1.1 * len(few.model_dump_json())


def test_an_item_that_is_not_what_its_header_says_is_listed() -> None:
    odd = min(many_images(1_500), key=lambda s: s.width_px * s.height_px)
    decision, found = kept(many_images(1_500), odd)
    assert decision.table.mismatches
    assert odd in [one.shape for one in found.modalities["image"].known]


def test_where_a_rule_only_bounds_them_very_many_are_not_listed() -> None:
    """Models cut images into tiles, and lists would grow without end."""
    for number, listed in ((2_500, None), (20_500, 1_000)):
        decision = decide(corpus(many_images(number)), host=Resizing)
        every = len(decision.table.costs)
        rule = ProvenRule(Ceiling(20_000, 20_000, 3_000, 200.0), every, exact=False)
        found = list_costs(decision, Policy(), {"image": rule}, NO_TEXTS)
        part = found.modalities["image"]
        assert len(part.known) == (listed or every)
        if part.unlisted is not None:
            assert part.unlisted.shapes == every - 1_000
            gate = build_gate(found, decision.engine_args, decision.budget.encoder_budget_tokens)
            light = min(decision.table.costs.values(), key=lambda cost: cost.tokens)
            admission = admit(gate, light.shape)
            assert admission.tokens is None or admission.tokens >= light.tokens
