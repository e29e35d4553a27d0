"""What the sweep makes of time that runs out, sizes that fail and an engine that ends."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import Any

from mmcalib.derive.encoder_sizes import EncoderBatch
from mmcalib.domain.budget import Dummy
from mmcalib.domain.encoder_run import EncoderRun
from mmcalib.domain.shapes import ImageShape, Modality
from mmcalib.engine.messages import BatchEncoded, Encode
from mmcalib.errors import EngineDied
from mmcalib.gpus import catalogue
from mmcalib.progress import Silent
from mmcalib.workflows.calibration.encoder_sweep import encoder_sweep
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.proof.sweep import Sweep, sweep, sweep_check
from tests.workflows.corpora import corpus, decide
from tests.workflows.fake_host import FakeHost, cost, opened

LARGE = ImageShape(2800, 2240)  # 8,000 tokens
WIDTH_BYTES, PEAK_BYTES, INPUT_BYTES = 4096, 150_000, 4704


class Encoder(FakeHost):
    """Takes `seconds_per_token`, refuses more than `most_tokens`, ends beyond `last_tokens`."""

    padded = False

    def __init__(self, seconds_per_token: float = 0, most: int = 10**9, last: int = 10**9) -> None:
        super().__init__(opened())
        self._seconds_per_token, self._most, self._last = seconds_per_token, most, last

    def ask(self, request: Any, doing: str) -> Any:
        if not isinstance(request, Encode):
            return super().ask(request, doing)
        embeds = cost(request.shape, request.setting.mm_processor_kwargs).embeds
        tokens = embeds * request.items
        if tokens > self._last:
            raise EngineDied("the engine process was killed by SIGKILL", hint="its log")
        if tokens > self._most:
            return BatchEncoded(None, "out of memory")
        time.sleep(tokens * self._seconds_per_token)
        taken = 8000 * request.items if self.padded else tokens
        sizes = (tokens * WIDTH_BYTES, tokens * INPUT_BYTES, taken * PEAK_BYTES)
        return BatchEncoded(EncoderRun(embeds, *sizes, tokens * self._seconds_per_token))


class Padding(Encoder):
    """Every item takes what the largest does."""

    padded = True


def decided() -> Decision:
    """For one large image; with the dummy's size, which the pretend model does not tell."""
    decision = decide(corpus([LARGE]))
    dummy = Dummy(8000, 0, {"width": LARGE.width_px, "height": LARGE.height_px})
    return replace(decision, unhinted=replace(decision.unhinted, dummies={"image": dummy}))


def swept(host: Encoder, seconds: float = 60) -> Sweep:
    return sweep(host, opened(), decided(), seconds, Silent())  # type: ignore[arg-type]


def test_ten_sizes_up_to_the_largest_and_several_of_a_middle_one() -> None:
    found = swept(Encoder())
    assert set(found.swept) == {"image"}
    batches = [one.batch for one in found.swept["image"]]
    assert len([batch for batch in batches if batch.items == 1]) == 10
    assert max(batch.sized.embeds for batch in batches) == 8000
    assert [batch.items for batch in batches if batch.items > 1] == [2, 4]
    check = sweep_check(found)
    assert check.status == "pass"
    assert "12 image batches" in check.detail


def test_what_would_take_too_long_is_left_out_and_named() -> None:
    started = time.monotonic()
    found = swept(Encoder(seconds_per_token=2e-5), seconds=0.15)
    assert time.monotonic() - started < 1
    left = found.left_out["image"]
    assert found.swept["image"]
    assert min(b.tokens for b in left) > max(s.batch.tokens for s in found.swept["image"])
    check = sweep_check(found)
    assert check.status == "warn"
    assert "1 × 8,000" in check.detail
    assert "--startup-budget" in check.remedy


def test_no_time_at_all_encodes_nothing() -> None:
    found = swept(Encoder(), seconds=0)
    assert not any(found.swept.values())
    assert len(found.left_out["image"]) == 12
    assert "encoded nothing" in sweep_check(found).detail


def test_a_size_that_fails_costs_only_itself() -> None:
    found = swept(Encoder(most=5000))
    assert {reason for _, reason in found.failed["image"]} == {"out of memory"}
    assert all(one.batch.tokens <= 5000 for one in found.swept["image"])
    check = sweep_check(found)
    assert check.status == "warn"
    assert "out of memory" in check.detail


def test_memory_that_goes_by_items_is_a_warning() -> None:
    check = sweep_check(swept(Padding()))
    assert check.status == "warn"
    assert "4.0 times what one of as many takes" in check.detail
    assert "--max-num-seqs" in check.remedy


def test_an_engine_that_ends_leaves_what_was_found() -> None:
    found = swept(Encoder(last=1000))
    assert found.swept["image"]
    assert "killed by SIGKILL" in sweep_check(found).detail


def test_points_curve_and_rehearsed_peaks_stand_in_the_report() -> None:
    found, decision = swept(Encoder(most=7000)), decided()
    first = found.swept["image"][0].batch
    rehearsed: dict[tuple[Modality, EncoderBatch], int] = {("image", first): 12345}
    report = encoder_sweep(found, _started(), decision, rehearsed, catalogue.find("L4"))
    assert report is not None
    image = report.modalities["image"]
    assert image.curve is not None
    assert (round(image.curve.bytes_per_token), image.curve.constant_bytes) == (PEAK_BYTES, 0)
    assert image.cache_bytes_per_token == WIDTH_BYTES
    assert report.cache_bytes == decision.budget.encoder_cache_size * WIDTH_BYTES
    assert image.points[0].rehearsed_bytes == 12345
    assert {point.residual_bytes for point in image.points} == {0}
    assert [(one.tokens, one.reason) for one in image.not_encoded if one.items == 1] == [
        (8000, "out of memory")
    ]
    assert report.gpu == catalogue.find("L4").name


def test_nothing_encoded_is_no_report() -> None:
    nothing = encoder_sweep(swept(Encoder(), 0), _started(), decided(), {}, None)
    assert nothing is None
    assert encoder_sweep(None, _started(), decided(), {}, None) is None


def _started() -> Any:
    from mmcalib.engine.messages import EngineStarted
    from mmcalib.workflows.proof.startup import Started

    none: dict[str, Any] = {figure.name: 0 for figure in fields(EngineStarted)}
    figures = EngineStarted(**{**none, "device": "cpu"})
    return Started(figures, (2, 2), (36, 32))
