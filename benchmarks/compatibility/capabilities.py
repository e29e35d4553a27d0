"""What the installed vLLM can be asked for, each tried on a small model; prints them as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from mmcalib.corpus.chat import PART_OF, ChatRequest, text_part, url_part
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.model import Cost, ModelInfo
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.domain.traffic import Arrivals, TrafficItem, TrafficRequest
from mmcalib.engine import messages as m
from mmcalib.engine.host import EngineHost
from mmcalib.errors import EngineError, VllmMoved
from mmcalib.files import Scratch, write_text
from mmcalib.models import gpus
from mmcalib.models.catalogue import find_model
from mmcalib.models.checkpoint import materialise
from mmcalib.models.cut import cut_checkpoint
from mmcalib.text import gib

CapabilityState = Literal["works", "moved", "failed", "not tried"]


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that vLLM was asked for, and what came of it; `moved`: this release is not as
    mmcalib knows it.
    """

    name: str
    state: CapabilityState
    detail: str
    seconds: float


# Images, video, knobs and a chat template; a single layer of each stack starts in seconds.
_MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
_GPU = "L4"
_CONTEXT_TOKENS = 2048
_PHOTO = ImageShape(640, 480)
_CLIP = VideoShape(48, 24.0, 2.0, 320, 240)
_SMALL = {"images_kwargs": {"size": {"shortest_edge": 3136, "longest_edge": 401408}}}

REHEARSAL = "memory rehearsal"
SERVING = "serving rehearsal"
START = "engine start"
REPLAY = "replay"


def capabilities() -> list[Capability]:
    """Every one that `run`, `validate`, `plan` and `rehearse` use, tried here; takes less than a
    minute. What ends a process ends the trials that need it, and no others.
    """
    with Scratch() as scratch, ThreadPoolExecutor(1) as beside:
        path = _model(scratch.path)
        rehearsal = beside.submit(_rehearsed, path)
        found = list(_Trials(path, scratch.path).each())
        return [*found, *rehearsal.result()]


@dataclass(frozen=True, slots=True)
class _Trial:
    """`ask` says in a few words what came of it."""

    name: str
    ask: Callable[[EngineHost], str]


class _Trials:
    """Those that one process answers, in the order in which a run has them."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path, self._scratch = path, scratch
        self._model: ModelInfo | None = None
        self._photo: Cost | None = None

    def each(self) -> Iterator[Capability]:
        ended = ""
        with EngineHost() as host:
            for trial in self._trials():
                if ended:
                    yield _untried(trial.name, ended)
                    continue
                found = _tried(trial, host)
                yield found
                if found.state != "works" and (self._model is None or trial.name == START):
                    ended = f"needs: {trial.name}"

    def _trials(self) -> Iterator[_Trial]:
        yield _Trial("opening a model", self._open)
        yield _Trial("items", self._measure)
        yield _Trial("counting", self._count)
        yield _Trial("encoder budget", self._budget)
        yield _Trial("text of requests", self._texts)
        yield _Trial("config file", self._parse)
        yield _Trial(START, self._start)
        yield _Trial(REPLAY, self._replay)

    def _open(self, host: EngineHost) -> str:
        opened = host.ask(m.OpenModel(str(self._path)), "opening the model")
        if opened.unavailable:
            raise VllmMoved("; ".join(f"{part}: {why}" for part, why in opened.unavailable.items()))
        self._model = opened
        return f"{len(opened.knobs)} knobs, {len(opened.server.limits)} limits of the server"

    def _measure(self, host: EngineHost) -> str:
        request = m.Measure(DEFAULT, (m.Blank(_PHOTO), m.Blank(_CLIP)))
        found = list(host.measure(request, "measuring items"))
        costs = [one.cost for one in found if one.cost is not None]
        if len(costs) < len(found):
            raise EngineError(next(one.refusal for one in found if one.cost is None))
        self._photo = costs[0]
        return ", ".join(f"{one.tokens:,} tokens" for one in costs)

    def _count(self, host: EngineHost) -> str:
        request = m.CountEmbeds(DEFAULT, (m.Blank(_PHOTO),))
        (embeds,) = host.ask(request, "counting").embeds
        if embeds is None:
            raise EngineError("vLLM has no count of its images")
        if self._photo is not None and embeds != self._photo.embeds:
            raise EngineError(f"counted {embeds} tokens, processed {self._photo.embeds}")
        return f"{embeds:,} tokens, as processed"

    def _budget(self, host: EngineHost) -> str:
        request = m.ComputeBudget(self._args(), build_dummy=True, only_profiled=True)
        budget = host.ask(request, "computing the encoder budget")
        return f"{budget.encoder_budget_tokens:,} tokens"

    def _texts(self, host: EngineHost) -> str:
        request = ChatRequest.of_user("Describe this.")
        (tokens,) = host.ask(m.CountTexts((request,)), "counting the text of a request")
        if isinstance(tokens, str):
            raise EngineError(tokens)
        return f"{tokens} tokens"

    def _parse(self, host: EngineHost) -> str:
        file = self._scratch / "engine.yaml"
        write_text(file, f"model: {self._path}\nmax-model-len: {_CONTEXT_TOKENS}\n")
        parsed = host.ask(m.ParseServeConfig(str(file)), "parsing a config file").engine_args
        if parsed.get("max_model_len") != _CONTEXT_TOKENS:
            raise EngineError(f"max-model-len is read as {parsed.get('max_model_len')}")
        return f"{len(parsed)} settings read back"

    def _start(self, host: EngineHost) -> str:
        assert self._model is not None
        if not self._model.starts_engines:
            raise _NotHereError("no GPU is here, for which this build of vLLM is")
        args = {**self._args(), "load_format": "dummy", "dtype": "bfloat16", "enforce_eager": True}
        started = host.ask(m.StartEngine(args, (1, 1), 0.0), "starting the engine")
        return f"on {started.device} in {started.start_s:.0f} s"

    def _replay(self, host: EngineHost) -> str:
        photo = self._scratch / "photo.png"
        Image.new("RGB", (_PHOTO.width_px, _PHOTO.height_px)).save(photo)
        content = [text_part("Describe this."), url_part(PART_OF["image"], photo.as_uri())]
        tokens = (self._photo.tokens,) if self._photo else ()
        prompt = m.ReplayPrompt("photo.png", ChatRequest.of_user(content), tokens)
        (answer,) = host.ask(m.Replay((prompt,)), "answering a request").answers
        if answer.error:
            raise EngineError(answer.error)
        if answer.item_tokens != tokens:
            raise EngineError(f"{answer.item_tokens} tokens, measured {tokens}")
        return f"answered, {sum(tokens)} media tokens"

    def _args(self) -> dict[str, object]:
        return {
            "model": str(self._path),
            "max_model_len": _CONTEXT_TOKENS,
            "max_num_batched_tokens": _CONTEXT_TOKENS,
            "max_num_seqs": 2,
            "limit_mm_per_prompt": {"image": 1, "video": 0},
            "mm_processor_kwargs": _SMALL,
        }


class _NotHereError(Exception):
    """Nothing to start an engine on."""


def _tried(trial: _Trial, host: EngineHost) -> Capability:
    started = time.monotonic()
    state: CapabilityState = "works"
    try:
        detail = trial.ask(host)
    except _NotHereError as error:
        return _untried(trial.name, str(error))
    except VllmMoved as error:
        state, detail = "moved", error.reason
    except EngineError as error:
        state, detail = "failed", error.message
    return Capability(trial.name, state, detail, round(time.monotonic() - started, 1))


def _untried(name: str, why: str) -> Capability:
    return Capability(name, "not tried", why, 0.0)


def _rehearsed(path: Path) -> list[Capability]:
    gpu = gpus.find_gpu(_GPU)
    args: dict[str, object] = {
        "model": str(path),
        "max_model_len": _CONTEXT_TOKENS,
        "mm_processor_kwargs": _SMALL,
    }

    def rehearse(host: EngineHost) -> str:
        found = host.ask(m.Rehearse(args, gpu), f"rehearsing on {gpu.name}")
        if found.kv_cache_tokens is None:
            raise EngineError(found.problem)
        return f"{gpu.name}: KV cache {gib(found.kv_cache_bytes)}"

    def serve(host: EngineHost) -> str:
        photos = (TrafficItem(_PHOTO, "photo"),)
        requests = tuple(TrafficRequest(name, 16, 2, photos) for name in "ab")
        request = m.ServeTraffic(
            {**args, "num_gpu_blocks_override": 512}, requests, Arrivals(), gpu
        )
        found = host.ask(request, f"serving on {gpu.name}")
        if found.refused:
            raise EngineError(found.refused[0][1])
        if sum(step.finished for step in found.steps) < len(requests):
            raise EngineError("not every request had its answer")
        return f"{gpu.name}: {len(requests)} requests in {len(found.steps)} steps"

    trial = _Trial(SERVING, serve)
    with EngineHost() as host:
        started = _tried(_Trial(REHEARSAL, rehearse), host)
        if started.state != "works":
            return [started, _untried(trial.name, f"needs: {REHEARSAL}")]
        return [started, _tried(trial, host)]


def _model(folder: Path) -> Path:
    geometry = find_model(_MODEL)
    assert geometry is not None
    return cut_checkpoint(materialise(geometry, folder / "whole"), folder / "model", 1)


if __name__ == "__main__":
    print(json.dumps([asdict(one) for one in capabilities()]))
