"""Corpora and decisions in memory, for tests of what is decided from them."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mmcalib.census.accesses import AccessLog
from mmcalib.census.census import Census, choose_sample
from mmcalib.census.prompts import PromptCensus
from mmcalib.checks.facts import Decision
from mmcalib.corpus.chat import ChatRequest, Prompt
from mmcalib.decision.cache import size_cache
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
from mmcalib.remedies.memory import Remedy
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


@dataclass(frozen=True)
class PretendGpu(MemoryJudge):
    """Judges by what a test says."""

    reason: Callable[[Decision], str] | None
    tokens: Callable[[Decision], int] | None
    default: int
    taken: Callable[[Decision], bool] | None
    offered: Callable[[Decision], Iterable[Remedy]] | None = None
    left: Callable[[Decision | None], int] | None = None
    reserved: Callable[[Decision], bool] | None = None

    def remedies(self, decision: Decision) -> Iterable[Remedy]:
        return self.offered(decision) if self.offered else ()

    def rejects(self, decision: Decision, *, reserved: bool = False) -> str:
        if reserved and self.reserved and not self.reserved(decision):
            return "startup reserves too little"
        return self.reason(decision) if self.reason else ""

    def kv_tokens(self, decision: Decision | None) -> int | None:
        if decision is None:
            return self.default
        return self.tokens(decision) if self.tokens else None

    def serves_worse(self, decision: Decision) -> bool:
        return self.taken is not None and self.taken(decision)

    def reserve_left(self, decision: Decision | None) -> int | None:
        return self.left(decision) if self.left else None


def decide(
    read: LoadedCorpus,
    policy: Policy | None = None,
    model: ModelInfo | None = None,
    files: Mapping[str, Shape | None] | None = None,
    host: type[FakeHost] = FakeHost,
    rejects: Callable[[Decision], str] | None = None,
    kv_tokens: Callable[[Decision], int] | None = None,
    default_kv_tokens: int = 0,
    serves_worse: Callable[[Decision], bool] | None = None,
    handed: Files = pretended,
    remedies: Callable[[Decision], Iterable[Remedy]] | None = None,
    reserve_left: Callable[[Decision | None], int] | None = None,
    reserves: Callable[[Decision], bool] | None = None,
) -> Decision:
    """Decide for the pretend model."""
    policy, model = policy or Policy(), model or opened()
    if policy.context_tokens is not None:
        model = replace(model, max_model_len=policy.context_tokens)
    known = {path_of(entry.shape): entry.shape for entry in read.census.shapes()}
    there = host(model, {**known, **(files or {})})
    budgets = BudgetSource(there, model, "/models/pretend", policy, files=handed)  # type: ignore[arg-type]
    sample = choose_sample(read.census, 12)
    judge = PretendGpu(
        rejects, kv_tokens, default_kv_tokens, serves_worse, remedies, reserve_left, reserves
    )
    texts = Texts.of(there, model.modalities, read.texts)  # type: ignore[arg-type]
    decided = decide_it(read.census, read.prompts, sample, budgets, Silent(), judge, texts)
    return decided.with_cache(
        size_cache(
            read.accesses, decided.table, decided.counts, decided.cache_floor(), model, policy
        )
    )
