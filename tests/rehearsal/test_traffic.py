"""Requests through vLLM's engine core on an imaginary GPU, and through the real CPU engine."""

import json
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from mmcalib.corpus.chat import text_part
from mmcalib.decision.texts import Texts
from mmcalib.domain.shapes import AudioShape, ImageShape
from mmcalib.domain.traffic import Arrivals, Traffic, TrafficItem, TrafficRequest, TrafficStep
from mmcalib.engine.environment import child_environment
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import OpenModel, ServeTraffic
from mmcalib.models.cut import cut_checkpoint
from mmcalib.models.gpus import find_gpu as find_gpu
from mmcalib.progress import Silent
from mmcalib.releases.release import VLLM_0_30
from mmcalib.workflows.corpus import read_corpus
from mmcalib.workflows.traffic.requests import make_trace
from tests.e2e.media import part, photo, write_requests
from tests.programs import answer_of
from tests.rehearsal.conftest import Theatre
from tests.upstream import before

pytestmark = [pytest.mark.engine, pytest.mark.slow]
QWEN, QWEN3 = "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"
INTERNVL, AUDIO = "OpenGVLab/InternVL2-2B", "Qwen/Qwen2-Audio-7B-Instruct"
WHISPER = "openai/whisper-large-v3"
# The CPU backend wants blocks of 32 tokens for prefix caching.
ARGS = {
    "dtype": "bfloat16",
    "max_model_len": 4096,
    "max_num_batched_tokens": 1200,
    "max_num_seqs": 12,
    "block_size": 32,
    "enforce_eager": True,
    "limit_mm_per_prompt": {"image": 3, "video": 0},
}
SIZES = ((28, 28), (56, 112), (224, 224), (280, 140), (336, 224))
SMALL_TILES: dict[str, Any] = {"mm_processor_kwargs": {"max_dynamic_patch": 1}}
SMALL_PIXELS: dict[str, Any] = {
    "mm_processor_kwargs": {"size": {"shortest_edge": 784, "longest_edge": 313_600}}
}
ROOMY: dict[str, Any] = {"num_gpu_blocks_override": 2000, **SMALL_PIXELS}
AT_ONCE = Arrivals()
Requests = tuple[TrafficRequest, ...]


def traffic(requests: int, seed: int = 7) -> Requests:
    """One to three images of five sizes in each, a third of them seen before."""
    drawn = random.Random(seed)
    seen: list[TrafficItem] = []
    made = []
    for number in range(requests):
        items = []
        for _ in range(drawn.randint(1, 3)):
            if seen and drawn.random() < 0.33:
                items.append(drawn.choice(seen))
                continue
            seen.append(TrafficItem(ImageShape(*drawn.choice(SIZES)), f"image-{len(seen)}"))
            items.append(seen[-1])
        text, answer = drawn.randint(8, 60), drawn.randint(1, 6)
        made.append(TrafficRequest(f"r.jsonl:{number}", text, answer, tuple(items)))
    return tuple(made)


def request_of(folder: Path, requests: Requests, arrivals: Arrivals, **args: Any) -> ServeTraffic:
    return ServeTraffic({**ARGS, **args, "model": str(folder)}, requests, arrivals, find_gpu("L4"))


def served(host, folder: Path, requests: Requests, arrivals=AT_ONCE, **args: Any) -> Traffic:
    return host.ask(request_of(folder, requests, arrivals, **args), "serving")


def serve_really(request: ServeTraffic) -> Traffic:
    """Serve on this machine's engine, in a process with the shim; nothing tells its memory."""
    from mmcalib.child.rehearsal.traffic import serve_by

    cores, memory = list[Any](), dict.fromkeys(("reserved_bytes", "peak_bytes", "held_bytes"), 0)
    books: Any = SimpleNamespace(on_started=cores.append, largest=(), **memory)
    books.profile, books.run = lambda worker, method: method(), lambda decided, work: work()
    traffic = serve_by(books, request, print)
    cores[0].core.shutdown()
    return traffic


def served_on_both(folder: Path, requests: Requests, logs: Path, **args) -> tuple[Traffic, Traffic]:
    """On an imaginary L4, and on this machine's engine: both decide alike, and refuse none."""
    with EngineHost(log=logs / "imaginary.log") as host:
        imagined = served(host, folder, requests, **args)
    # Of this machine's memory, without a share of which the CPU's engine does not start.
    args |= {"kv_cache_memory_bytes": 1 << 29}
    apart = ProcessPoolExecutor(1, get_context("spawn"))
    with patch.dict(os.environ, child_environment(os.environ)), apart:
        asked = request_of(folder, requests, AT_ONCE, **args)
        real = apart.submit(serve_really, asked).result()
    assert imagined.refused == real.refused == ()
    assert decisions(imagined) == decisions(real)
    return imagined, real


def decisions(traffic: Traffic) -> list[TrafficStep]:
    """The scheduler's decision at each step, and the cache after it, on any device."""
    return [replace(step, peak_bytes=0, held_bytes=0) for step in traffic.steps]


_CPU = before(VLLM_0_30, "Qwen3-VL does not start on a CPU")


def cut_model(h100: Theatre, engine_cache: Path, model: str) -> Path:
    """Two layers of each kind."""
    target = engine_cache / f"{model.replace('/', '--')}-served"
    return target if target.exists() else cut_checkpoint(h100.folder(model), target, 2)


@pytest.fixture(scope="module", params=[QWEN, pytest.param(QWEN3, marks=_CPU), INTERNVL])
def cut(request: pytest.FixtureRequest, h100: Theatre, engine_cache: Path) -> tuple[str, Path]:
    return request.param, cut_model(h100, engine_cache, request.param)


@pytest.fixture
def first_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's engine has that one alone."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")


def test_the_scheduler_decides_as_on_the_real_engine(cut, first_runner, tmp_path: Path) -> None:
    """Each step schedules, encodes, evicts, preempts, waits and caches the same, to the byte."""
    model, folder = cut
    knobs = SMALL_TILES if model == INTERNVL else SMALL_PIXELS
    requests = traffic(50)
    imagined, real = served_on_both(
        folder, requests, tmp_path, num_gpu_blocks_override=200, **knobs
    )
    assert sum(step.finished for step in real.steps) == len(requests)
    assert imagined.reused_items == real.reused_items > 0
    assert any(step.waiting for step in real.steps)
    assert any(step.evicted for step in real.steps)
    assert not any(step.peak_bytes for step in real.steps)
    assert all(step.peak_bytes for step in imagined.steps if step.tokens)


def conversations(folder: Path, requests: int, seed: int = 5) -> Path:
    """Two system prompts, pictures before or after the question, a third of all repeated."""
    drawn, bodies = random.Random(seed), []
    files = [photo(folder / f"{n}.png", *drawn.choice(SIZES), n) for n in range(requests // 2)]
    pictures = [part("image", file) for file in files]
    for _ in range(requests):
        question = [text_part("What is this? " * drawn.randint(1, 4))]
        asked = drawn.choices(pictures, k=drawn.randint(1, 3))
        content = asked + question if drawn.random() < 0.5 else question + asked
        system = {"role": "system", "content": drawn.choice(["Be brief. ", "Be exact. "]) * 12}
        messages = [system, {"role": "user", "content": content}]
        bodies.append({"messages": messages, "max_tokens": drawn.randint(1, 12)})
    return write_requests(folder / "requests.jsonl", bodies)


def test_prefixes_are_cached_as_on_the_real_engine(cut, first_runner: None, tmp_path: Path) -> None:
    """vLLM's `LLM.chat` gets the messages: with made-up prompts 25 of 38 steps differed."""
    model, folder = cut
    if model == INTERNVL:
        pytest.skip("its template has no system turn")
    requests = conversations(tmp_path, 60)
    args: dict[str, Any] = {**ARGS, **SMALL_PIXELS, "num_gpu_blocks_override": 160}
    real_args = {
        **args,
        "model": str(folder),
        "load_format": "dummy",
        "async_scheduling": False,
        "allowed_local_media_path": str(tmp_path),
        "kv_cache_memory_bytes": 1 << 29,
    }
    program = Path(__file__).with_name("chatting.py")
    real = answer_of(program, json.dumps(real_args), requests)
    corpus = read_corpus([], [requests], allowed_root=tmp_path, cache=tmp_path, progress=Silent())
    with EngineHost(log=tmp_path / "texts.log") as host:
        host.ask(OpenModel(str(folder), 4096), "opening")
        asked = make_trace(corpus, Texts(host).split)
    with EngineHost(log=tmp_path / "imaginary.log") as host:
        found = served(host, folder, asked.requests, **args)
    assert found.refused == ()
    names = [name for name in real[0] if name != "cached"]
    ours = [{name: getattr(step, name) for name in names} for step in found.steps]
    assert ours == [{name: step[name] for name in names} for step in real]
    assert found.cached_tokens == sum(step["cached"] for step in real) > 1000


@pytest.fixture(scope="module")
def imaginary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHost]:
    with EngineHost(log=tmp_path_factory.mktemp("traffic") / "l4.log") as host:
        yield host


Serve = Callable[..., Traffic]


@pytest.fixture(scope="module")
def serve(imaginary: EngineHost, h100: Theatre, engine_cache: Path) -> Serve:
    """Serve requests to a cut model with blocks for all of them."""
    return partial(served, imaginary, cut_model(h100, engine_cache, QWEN), **ROOMY)


def test_peaks_do_not_depend_on_the_depth(imaginary, serve: Serve, h100: Theatre) -> None:
    """Above the loaded model: 36 layers and 32 take what 2 and 2 take."""
    requests = traffic(6)
    shallow = serve(requests)
    deep = served(imaginary, h100.folder(QWEN), requests, **ROOMY)
    assert decisions(shallow) == decisions(deep)
    peaks = [step.peak_bytes for step in deep.steps]
    assert [step.peak_bytes for step in shallow.steps] == pytest.approx(peaks, rel=0.01)
    assert shallow.reserved_bytes == pytest.approx(deep.reserved_bytes, rel=0.01)


def test_few_blocks_preempt(serve: Serve) -> None:
    """Answers that crowd the KV cache send others back; all are answered in the end."""
    items = (TrafficItem(ImageShape(280, 280), "one"),)
    requests = tuple(TrafficRequest(f"r:{n}", 16, 200, items) for n in range(8))
    found = serve(requests, num_gpu_blocks_override=60, max_model_len=1024)
    assert sum(step.preempted for step in found.steps)
    assert sum(step.finished for step in found.steps) == len(requests)
    assert max(step.kv_blocks for step in found.steps) <= found.kv_blocks == 59


def test_as_many_come_as_are_under_way(serve: Serve) -> None:
    requests = traffic(9)
    few = serve(requests, arrivals=Arrivals(concurrency=2))
    assert max(step.scheduled + step.waiting for step in few.steps) == 2
    slow = serve(requests, arrivals=Arrivals(rate=1, step_s=1.0))
    assert max(step.new for step in slow.steps) == 1
    assert sum(step.new for step in slow.steps) == len(requests)


def test_timed_requests_come_when_they_were_sent(serve: Serve) -> None:
    """Two at once, the next a second later, and one after an hour, for which no step is taken."""
    requests = tuple(
        replace(request, sent_s=sent_s)
        for request, sent_s in zip(traffic(4), (0.0, 0.0, 1.0, 3600.0), strict=True)
    )
    timed = Arrivals(timed=True, step_s=0.5)
    found = serve(requests, arrivals=timed, num_gpu_blocks_override=200)
    comes = [(number, step.new) for number, step in enumerate(found.steps) if step.new]
    assert [new for _, new in comes] == [2, 1, 1]
    assert [number for number, _ in comes][:2] == [0, 2]
    assert sum(step.finished for step in found.steps) == 4
    assert len(found.steps) < 40


def test_what_the_server_refuses_is_said(serve: Serve) -> None:
    long = TrafficRequest("long", 5000, 1)
    large = TrafficRequest("large", 8, 1, (TrafficItem(ImageShape(2000, 2000), "large"),))
    four = TrafficRequest("four", 8, 1, large.items * 4)
    found = serve((long, four, large, *traffic(1)))
    assert [origin for origin, _ in found.refused] == ["long", "four"]
    assert "5,000 tokens leave no room" in found.refused[0][1]
    assert "At most 3 image(s) may be provided in one prompt" in found.refused[1][1]
    assert sum(step.finished for step in found.steps) == 2


def test_a_request_that_never_starts_is_said(serve: Serve) -> None:
    """The scheduler would wait for ever; without that request it serves the next."""
    endless, good = TrafficRequest("endless", 600, 1), TrafficRequest("good", 8, 1)
    found = serve((endless, good), scheduler_cls="tests.rehearsal.picky.NeverLong")
    assert [origin for origin, _ in found.refused] == ["endless"]
    assert "never starts it" in found.refused[0][1]
    assert sum(step.finished for step in found.steps) == 1


def test_equal_requests_share_a_prefix(serve: Serve) -> None:
    """Equal text before equal items is found in the KV cache, and the encoder is not asked."""
    items, text = (TrafficItem(ImageShape(280, 280), "same"),), tuple(range(300, 364))
    requests = tuple(TrafficRequest(f"r:{n}", 64, 2, items, (text, "image")) for n in range(4))
    one_by_one = Arrivals(concurrency=1)
    found = serve(requests, arrivals=one_by_one)
    assert sum(step.encoded for step in found.steps) == 1
    assert found.cached_tokens >= 3 * 64
    other = tuple(TrafficRequest(f"r:{n}", 64, 2, items) for n in range(4))
    apart = serve(other, arrivals=one_by_one)
    assert apart.cached_tokens == 0
    assert apart.reused_items == 3
    small = {"max_num_batched_tokens": 80, "max_num_seqs": 8}
    assert serve(requests[:1], **small).reused_items == 0


def test_views_pin_the_batches_that_they_came_with(serve: Serve) -> None:
    """A small picture asked for again pins its batch (five large ones; cache of 2,400 tokens):
    7.4 MB are alive after the first round, 29.6 after the fourth, 74.1 after the tenth.
    """
    args: dict[str, Any] = {
        "max_model_len": 8192,
        "max_num_batched_tokens": 2400,
        "max_num_seqs": 6,
        "limit_mm_per_prompt": {"image": 1, "video": 0},
    }
    rounds = 17
    sent: list[tuple[str, int]] = []
    batches = []
    for number in range(rounds):
        small = (f"small {number}", 56)
        batches += [[old] for old in sent]
        batches.append([small, *((f"large {number}.{n}", 532) for n in range(5))])
        sent.append(small)
    requests = tuple(
        TrafficRequest(
            name, 8, 1, (TrafficItem(ImageShape(side, side), name),), sent_s=100.0 * number
        )
        for number, batch in enumerate(batches)
        for name, side in batch
    )
    found = serve(requests, arrivals=Arrivals(timed=True), **args)
    assert not found.refused
    alive = [step.alive_bytes / 1e6 for step in found.steps if step.encoded > 1]
    assert len(alive) == rounds
    assert [alive[0], alive[3], alive[9]] == pytest.approx([7.4, 29.6, 74.1], rel=0.05)
    assert max(step.logical_bytes for step in found.steps) <= 2400 * 4096
    assert max(step.peak_bytes for step in found.steps) > found.reserved_bytes


def test_short_clips_take_more_than_startup_reserves(imaginary, h100, tmp_path: Path) -> None:
    """Sixteen clips padded to 30 s fit a step's tokens, but take more than its profile reserved."""
    cut = cut_model(h100, tmp_path, AUDIO)
    clips = tuple(
        TrafficRequest(f"r:{n}", 8, 1, (TrafficItem(AudioShape(16_000 + n, 16_000), f"clip-{n}"),))
        for n in range(16)
    )
    args: dict[str, Any] = {
        "max_num_batched_tokens": 2250,
        "max_num_seqs": 16,
        "limit_mm_per_prompt": {"audio": 1},
        "num_gpu_blocks_override": 2000,
    }
    found = served(imaginary, cut, clips, **args)
    assert max(step.encoded for step in found.steps) == len(clips)
    assert max(step.peak_bytes for step in found.steps) > 2 * found.reserved_bytes


def test_an_encoder_decoder_decides_as_the_real_engine(h100, engine_cache, first_runner, tmp_path):
    """A clip's item is no part of the prompt, and leaves the encoder's cache with its step."""
    folder = cut_model(h100, engine_cache, WHISPER)
    drawn = random.Random(3)
    requests = tuple(
        TrafficRequest(
            f"r.jsonl:{number}",
            drawn.randint(4, 40),
            drawn.randint(1, 30),
            (TrafficItem(AudioShape(drawn.randint(1600, 480_000), 16_000), f"clip-{number}"),),
        )
        for number in range(20)
    )
    args: dict[str, Any] = {"max_model_len": 448, "limit_mm_per_prompt": {"audio": 1}}
    args |= {"num_gpu_blocks_override": 500, "max_num_batched_tokens": 3200}
    imagined, _ = served_on_both(folder, requests, tmp_path, **args)
    assert sum(step.finished for step in imagined.steps) == len(requests)
    assert max(step.encoded for step in imagined.steps) == 2
    # The outputs of one step at most, in bfloat16, and none once the requests go on.
    assert max(step.alive_bytes for step in imagined.steps) == 2 * 1500 * 1280 * 2
    assert imagined.steps[-1].alive_bytes == 0
    assert min(step.cache_tokens for step in imagined.steps) == 0
