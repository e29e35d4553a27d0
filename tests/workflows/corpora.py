"""Corpora and decisions in memory, for tests of what is decided from them."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from mmcalib.census.accesses import AccessLog
from mmcalib.census.census import Census, choose_sample
from mmcalib.census.prompts import PromptCensus
from mmcalib.checks.facts import Decision
from mmcalib.corpus.chat import ChatRequest, Prompt
from mmcalib.decision.cache import with_cache
from mmcalib.decision.decide import MemoryJudge
from mmcalib.decision.decide import decide as decide_it
from mmcalib.decision.explore import BudgetSource
from mmcalib.decision.media_files import Files
from mmcalib.decision.texts import Texts
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import ImageShape, Modality, Shape
from mmcalib.limits.policy import Policy
from mmcalib.progress import Silent
from mmcalib.workflows.corpus import LoadedCorpus
from tests.workflows.fake_host import FakeHost, opened


def path_of(shape: Shape) -> str:
    return f"/media/{shape}"


def corpus(
    shapes: Iterable[Shape], requests: Sequence[Sequence[Shape]] = (), skipped: int = 0
) -> LoadedCorpus:
    """`shapes` lie in a folder; `requests` name theirs."""
    census, prompts, log = Census(), PromptCensus(), AccessLog()
    for shape in [*shapes, *(shape for request in requests for shape in request)]:
        census.add(shape, path_of(shape))
    for number, request in enumerate(requests, start=1):
        items = tuple(Item(path_of(shape), shape.modality) for shape in request)
        prompts.add(request, Prompt(f"r.jsonl:{number}", (), ChatRequest([{"role": "user"}])))
        log.add(Prompt(f"r.jsonl:{number}", items), request)
    left_out = tuple(Skipped(f"/media/bad{n}.jpg", "truncated") for n in range(skipped))
    return LoadedCorpus(census, prompts, left_out, census.items(), accesses=log.accesses())


def many_images(number: int) -> list[ImageShape]:
    chance = random.Random(5)
    sizes = {(chance.randint(60, 3_000), chance.randint(60, 3_000)) for _ in range(number)}
    return [ImageShape(*size) for size in sorted(sizes)]


def pretended(media: Iterable[tuple[Modality, str]]) -> list[str | Skipped]:
    """The files of a pretend model's media, which are none."""
    return [path for _, path in media]


def pretend_gpu(default: int, said: dict[str, Callable[..., Any]]) -> MemoryJudge:
    """Return a judge that says what a test says, under the names of its methods."""
    judge, reserves = MemoryJudge(), said.pop("reserves", lambda one: True)
    rejects, tokens = said.pop("rejects", judge.rejects), said.pop("kv_tokens", judge.kv_tokens)

    def refuse(decision: Decision, *, reserved: bool = False) -> str:
        short = "startup reserves too little" if reserved and not reserves(decision) else ""
        return short or rejects(decision)

    vars(judge).update(said, rejects=refuse)
    vars(judge)["kv_tokens"] = lambda one: default if one is None else tokens(one)
    return judge


def decide(
    read: LoadedCorpus,
    policy: Policy | None = None,
    model: ModelInfo | None = None,
    files: Mapping[str, Shape | None] | None = None,
    host: type[FakeHost] = FakeHost,
    default_kv_tokens: int = 0,
    handed: Files = pretended,
    given: Mapping[str, Any] = MappingProxyType({}),
    **said: Callable[..., Any],
) -> Decision:
    """Decide for the pretend model."""
    policy, model = policy or Policy(), model or opened()
    if policy.context_tokens is not None:
        model = replace(model, max_model_len=policy.context_tokens)
    known = {path_of(entry.shape): entry.shape for entry in read.census.shapes()}
    there = host(model, {**known, **(files or {})})
    how = {"files": handed, "given": given}
    budgets = BudgetSource(there, model, "/models/pretend", policy, **how)  # type: ignore[arg-type]
    sample = choose_sample(read.census, 12)
    judge = pretend_gpu(default_kv_tokens, said)
    texts = Texts.of(there, model.modalities, read.texts)  # type: ignore[arg-type]
    decided = decide_it(read.census, read.prompts, sample, budgets, Silent(), judge, texts)
    return with_cache(decided, read.accesses, model, policy)
