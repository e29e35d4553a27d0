"""`mmcalib check` without vLLM, against vLLM's own loaders and processors."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmcalib.admission.rules import list_costs, prove_rules
from mmcalib.decision.decide import MemoryJudge, decide
from mmcalib.decision.explore import BudgetSource
from mmcalib.decision.texts import Texts
from mmcalib.domain.knobs import Setting
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine.messages import Blank
from mmcalib.gate.admission import Gate, admit
from mmcalib.limits.policy import Policy
from mmcalib.progress import Silent
from mmcalib.releases.release import VLLM_0_33
from mmcalib.results.costs import build_gate
from mmcalib.workflows.corpus import read_corpus
from tests.e2e.media import clip, photo, sound
from tests.engine.conftest import QWEN, Lab
from tests.upstream import QIANFAN, since

pytestmark = pytest.mark.engine
INTERNVL, LLAVA = "OpenGVLab/InternVL2-2B", "llava-hf/llava-v1.6-mistral-7b-hf"
QWEN3, QWEN_AUDIO = "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen2-Audio-7B-Instruct"
LESS = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Few examples of many shapes: a question to the engine takes longer than an item.
AT_ONCE = 16


Calibrate = Callable[[str], tuple[Lab, Gate, Setting]]


@pytest.fixture(scope="session")
def calibrated(lab: Callable[[str], Lab], tmp_path_factory) -> Calibrate:
    """Calibrates a model for a small corpus: the lab knows the truth under the setting."""
    found: dict[str, tuple[Gate, Setting]] = {}

    def calibrate(model_id: str) -> tuple[Lab, Gate, Setting]:
        opened = lab(model_id)
        if model_id not in found:
            found[model_id] = _calibrate(opened, tmp_path_factory.mktemp("media"))
        return (opened, *found[model_id])

    return calibrate


def _calibrate(lab: Lab, media: Path) -> tuple[Gate, Setting]:
    if "image" in lab.opened.modalities:
        photo(media / "large.jpg", 1600, 1200)
        photo(media / "small.jpg", 48, 64)
    if "video" in lab.opened.modalities:
        clip(media / "clip.mp4", 320, 240, 60)
    if "audio" in lab.opened.modalities:
        sound(media / "clip.wav", 12.3, 22050)
    cache = media.parent / "cache"
    corpus = read_corpus([media], [], allowed_root=None, cache=cache, progress=Silent())
    budgets = BudgetSource(lab.host, lab.opened, str(lab.folder), Policy())
    sample = [(e.shape, e.exemplars[0]) for e in corpus.census.shapes()]
    texts, judge = Texts(lab.host), MemoryJudge()
    decision = decide(corpus.census, corpus.prompts, sample, budgets, Silent(), judge, texts)
    rules = prove_rules(lab.host, lab.opened, decision, Silent())
    kept = list_costs(decision, Policy(), rules, texts)
    gate = build_gate(kept, decision.engine_args, decision.budget.encoder_budget_tokens)
    return gate, decision.setting


def rejected(gate: Gate, cost: Cost | str) -> bool:
    if isinstance(cost, str):
        return True
    room = gate.max_model_len - gate.text_reserve_tokens
    return cost.embeds > gate.budget_tokens or cost.tokens > room


def hold(gate: Gate, shape: Shape, cost: Cost | str) -> None:
    """The answer is right, or it is `unknown`; what it says of the cost is true."""
    answer = admit(gate, shape)
    assert not (answer.fits and rejected(gate, cost)), (shape, answer, cost)
    assert not (answer.answer == "no" and not rejected(gate, cost)), (shape, answer, cost)
    if isinstance(cost, Cost) and answer.tokens is not None and answer.embeds is not None:
        assert cost.tokens <= answer.tokens, (shape, answer, cost)
        assert cost.embeds <= answer.embeds, (shape, answer, cost)


sides = st.one_of(st.integers(1, 60), st.integers(61, 2500))
images = st.builds(ImageShape, sides, sides)
videos = st.builds(
    lambda frames, fps, width, height: VideoShape(frames, fps, frames / fps, width, height),
    st.integers(1, 400),
    st.sampled_from([1.0, 10.0, 23.976, 29.97, 60.0]),
    st.integers(2, 400),
    st.integers(2, 400),
)
sounds = st.builds(AudioShape, st.integers(400, 1_000_000), st.sampled_from([8000, 16000, 44100]))
_INTERNVL = pytest.param(INTERNVL, images, marks=since(VLLM_0_33, QIANFAN))


@pytest.mark.parametrize(
    ("model_id", "kind"),
    [
        *((QWEN, images), (QWEN3, images), _INTERNVL, (LLAVA, images)),
        *((QWEN, videos), (QWEN3, videos), (QWEN_AUDIO, sounds)),
    ],
)
@LESS
@given(data=st.data())
def test_nothing_is_admitted_that_the_engine_rejects(calibrated, model_id, kind, data) -> None:
    budget = data.draw(st.integers(1, 900 if kind is sounds else 6000))
    shapes = data.draw(st.lists(kind, min_size=AT_ONCE, max_size=AT_ONCE))
    opened, gate, setting = calibrated(model_id)
    gate = replace(gate, budget_tokens=budget)
    truth = opened.costs(*map(Blank, shapes), setting=setting)
    for shape, cost in zip(shapes, truth, strict=True):
        hold(gate, shape, cost)


def _photos(count: int) -> list[ImageShape]:
    """Sizes as cameras, phones and editors leave them: usual ratios, cropped a little."""
    chance = random.Random(7)
    found = []
    for _ in range(count):
        ratio = chance.choice([4 / 3, 3 / 2, 16 / 9, 1.0, 2.0, 3.0]) * chance.uniform(0.9, 1.1)
        width = chance.randint(300, 2400)
        sides = (width, max(1, round(width / ratio)))
        found.append(ImageShape(*(sides if chance.random() < 0.6 else sides[::-1])))
    return found


@pytest.mark.parametrize(
    "model_id", [QWEN, pytest.param(INTERNVL, marks=since(VLLM_0_33, QIANFAN)), LLAVA]
)
def test_most_photos_that_the_engine_admits_are_admitted(calibrated, model_id: str) -> None:
    opened, gate, setting = calibrated(model_id)
    photos = _photos(60)
    truth = opened.costs(*map(Blank, photos), setting=setting)
    good = [shape for shape, cost in zip(photos, truth, strict=True) if not rejected(gate, cost)]
    rate = sum(admit(gate, shape).fits for shape in good) / len(good)
    print(f"{model_id}: {rate:.0%} of {len(good)} photos")
    assert len(good) > 20
    assert rate >= 0.9
