"""Sounds that vLLM's processors count by length, against processed ones."""

import random
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import soundfile

from mmcalib.census.census import Census
from mmcalib.decision.measure import measure, measure_blanks
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import AudioShape
from mmcalib.engine.messages import Blank
from mmcalib.limits.costs import ResampledClip
from mmcalib.limits.counting import PROBES
from mmcalib.progress import Silent
from tests.engine.conftest import Lab
from tests.odd_media import heard

pytestmark = pytest.mark.engine
OMNI, QWEN_AUDIO = "Qwen/Qwen2.5-Omni-3B", "Qwen/Qwen2-Audio-7B-Instruct"
FLAMINGO, WHISPER = "nvidia/audio-flamingo-3-hf", "openai/whisper-large-v3"
GEMMA4, GEMMA3N = "google/gemma-4-E2B-it", "google/gemma-3n-E4B-it"
# Samples at 16 kHz from one frame of features to the next.
HOP = 160


def sounds(number: int, longest_s: int = 70) -> list[AudioShape]:
    """At every rate by chance, and on both sides of where a frame begins."""
    chance = random.Random(5)
    found = dict.fromkeys(
        AudioShape(frames * HOP + beside, 16_000)
        for frames in (*range(1, 10), *chance.sample(range(10, longest_s * 100), number // 6))
        for beside in (-1, 0, 1)
    )
    while len(found) < number:
        rate_hz = chance.choice((16_000, 8_000, 11_025, 22_050, 24_000, 44_100, 48_000))
        found[AudioShape(chance.randint(rate_hz // 10, longest_s * rate_hz), rate_hz)] = None
    return list(found)


@pytest.mark.parametrize("model_id", [QWEN_AUDIO, WHISPER, FLAMINGO])
def test_a_sound_is_counted_as_processed(lab: Callable[[str], Lab], model_id: str) -> None:
    assert lab(model_id).costs_as_counted(*map(Blank, sounds(90)))


def test_librosa_finds_a_sound_as_long_as_vllm_does(lab, tmp_path: Path) -> None:
    """At the model's 16 kHz; of what librosa does not read there is no second opinion."""
    pytest.importorskip("librosa")
    census, sample = Census(), []
    for name, samples, rate_hz in (("a.wav", 8_046, 8_000), ("b.flac", 99_999, 44_100)):
        path = str(tmp_path / name)
        soundfile.write(path, np.zeros((samples, 2), np.float32), rate_hz)
        sample.append((AudioShape(samples, rate_hz), path))
    coded = heard(tmp_path / "c.aac", "aac", "adts", 16_384 / 16_000)
    sample.append((AudioShape(16_384, 16_000), str(coded)))
    for shape, path in sample:
        census.add(shape, path)
    table, skipped = measure(lab(QWEN_AUDIO).host, census, DEFAULT, sample, Silent())
    assert skipped == []
    assert sorted(table.resampled, key=lambda one: one.exemplar) == [
        ResampledClip(str(tmp_path / "a.wav"), 16_092, 16_092),
        ResampledClip(str(tmp_path / "b.flac"), 36_281, 36_281),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model_id", [OMNI, QWEN_AUDIO, WHISPER, FLAMINGO, GEMMA4, GEMMA3N])
def test_sounds_longer_than_it_pads_to_are_counted_as_processed(lab, model_id: str) -> None:
    """Cut at 30 s, cut into pieces of 30 s, or past 300 s less a part frame: one is processed."""
    edges = [
        AudioShape(seconds * 16_000 + beside, 16_000)
        for seconds in (30, 300, 601)
        for beside in (-1, 0, 1, HOP, HOP + 1)
    ]
    assert lab(model_id).costs_as_counted(*map(Blank, edges))


@pytest.mark.slow
@pytest.mark.parametrize("model_id", [OMNI, QWEN_AUDIO, WHISPER, FLAMINGO, GEMMA4])
def test_what_is_counted_costs_as_much_as_what_is_processed(lab, model_id: str) -> None:
    """Gemma 3n is left out: it pads to no whole frames, so its sounds are processed."""
    census = Census()
    for shape in sounds(900):
        census.add(shape, f"/{shape}")
    opened = lab(model_id)
    with Silent().step("") as task:
        found = measure_blanks(opened.host, DEFAULT, {"audio": census.counts("audio")}, task, {})
    assert found.witnesses["audio"] >= PROBES - 10  # But those that it refuses.
    costs = found.costs["audio"]
    counted = costs.take(~np.isin(np.arange(len(costs)), costs.shapes.positions([*found.answers])))
    assert len(counted) > len(census.counts("audio")) / 2
    some = random.Random(1).sample(list(counted), 50)
    blanks = (Blank(one.shape) for one in some)
    figures = attrgetter("tokens", "embeds", "tensor_bytes", "sampled")
    assert list(map(figures, some)) == list(map(figures, opened.costs(*blanks)))
