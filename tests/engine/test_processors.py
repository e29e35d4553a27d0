"""vLLM's real processors, asked through the host."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.knobs import DEFAULT, Setting
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.engine.messages import Blank, File
from mmcalib.media.probe import probe
from tests.engine.conftest import Lab

pytestmark = pytest.mark.engine
CAP_512 = {"images_kwargs": {"size": {"longest_edge": 512 * 784, "shortest_edge": 3136}}}


def image(width: int, height: int) -> Blank:
    return Blank(ImageShape(width, height))


def test_the_model_is_described_as_vllm_sees_it(qwen: Lab) -> None:
    opened = qwen.opened
    assert opened.architecture == "Qwen2_5_VLForConditionalGeneration"
    assert opened.modalities == {"image": None, "video": None}
    assert opened.max_model_len == 128_000
    assert opened.video_loader == "qwen2_vl"
    assert opened.audio_rate_hz is None


def test_an_item_is_costed_in_tokens_embeds_and_bytes(qwen: Lab) -> None:
    cost = qwen.cost(image(1300, 876))
    assert (cost.tokens, cost.embeds) == (46 * 31, 46 * 31)
    assert cost.sampled == (1300, 876)
    assert cost.process_s > 0
    assert cost.cpu_s > 0
    # 4 patches a token, 1176 values a patch; the grid adds three 8-byte integers.
    assert cost.tensor_bytes == 4 * 46 * 31 * 1176 + 3 * 8


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        (image(1, 300), "aspect ratio"),
        # 768 sampled frames are 389 GB before they are copied once.
        (Blank(VideoShape(60_000, 25.0, 2400.0, 13_000, 13_000)), "GiB of host memory"),
    ],
)
def test_a_refused_item_has_the_inmost_reason_and_the_host_lives_on(qwen, subject, reason) -> None:
    refused, fine = qwen.costs(subject, image(300, 300))
    assert isinstance(refused, str)
    assert reason in refused
    assert isinstance(fine, Cost)


def test_real_items_cost_what_blanks_of_their_shape_cost(qwen: Lab, sample: Path) -> None:
    found = {
        path: probe(Item(str(path)))
        for kind in ("image", "video")
        for path in sorted((sample / kind).iterdir())
    }
    shapes = {path: shape for path, shape in found.items() if not isinstance(shape, Skipped)}
    assert len(shapes) == len(found) >= 60

    def tokens(*subjects: File | Blank) -> dict[Path, int | None]:
        costs = [one.tokens if isinstance(one, Cost) else None for one in qwen.costs(*subjects)]
        return dict(zip(shapes, costs, strict=True))

    real = tokens(*(File(shape.modality, str(path)) for path, shape in shapes.items()))
    assert real == tokens(*map(Blank, shapes.values()))
    assert sum(one is not None for one in real.values()) >= 60


@pytest.mark.parametrize("seconds", [0.5, 7.3, 30.0])
def test_audio_is_resampled_and_costed(lab: Callable[[str], Lab], seconds: float) -> None:
    audio = lab("Qwen/Qwen2-Audio-7B-Instruct")
    assert audio.opened.modalities == {"audio": None}
    assert audio.opened.audio_rate_hz == 16_000
    clips = [Blank(AudioShape(round(seconds * rate), rate)) for rate in (8_000, 16_000, 44_100)]
    costs = audio.costs(*clips)
    assert all(isinstance(cost, Cost) for cost in costs), costs
    tokens = {cost.tokens for cost in costs if isinstance(cost, Cost)}
    assert max(tokens) - min(tokens) <= 1, "resampling may round to one frame more or less"
    # 100 mel frames a second, halved twice.
    assert tokens.pop() == pytest.approx(seconds * 25, abs=1)


def test_settings_do_not_leak_into_each_other(qwen: Lab) -> None:
    first = qwen.cost(image(4032, 3024))
    qwen.cost(image(4032, 3024), mm_processor_kwargs=CAP_512)
    assert qwen.cost(image(4032, 3024)).tokens == first.tokens
    assert DEFAULT.key != Setting(CAP_512).key
