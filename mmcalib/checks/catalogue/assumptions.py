"""What nobody said and was assumed, what it will cause where it is wrong, and what settles it."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.checks.check import ASSUMED, Check, CheckId
from mmcalib.checks.facts import CheckFacts, Need
from mmcalib.checks.rule import CheckStage, Rule
from mmcalib.derive.fit import Fit
from mmcalib.derive.policy import FIT, TEXT_RESERVE_TOKENS
from mmcalib.wording import several

COUNT = CheckId(f"{ASSUMED}{{}} count")
ANSWER = CheckId(f"{ASSUMED}answer length")
SERVED_ANSWER = CheckId(f"{ASSUMED}answers in traffic")
STEP = CheckId(f"{ASSUMED}step size")


def _counts(facts: CheckFacts) -> Iterator[Check]:
    for modality, count in facts.configuration.counts.items():
        if count.label != "assumed":
            continue
        why = "no request of the corpus carries one"
        if facts.corpus.requests == 0:
            why = "the corpus has no requests"
        yield Check(
            COUNT.of(modality),
            "warn",
            f"{count.value} {modality} per prompt: {why}. vLLM answers a request that carries more "
            "with HTTP 400",
            f"--requests FILE counts them, --count {modality}=N says it",
        )


def _answer(facts: CheckFacts) -> Iterator[Check]:
    """Where the context is made to fit: then an answer ends where it does."""
    policy, longest = facts.policy, facts.prompt
    unsaid = policy.text_reserve_tokens == TEXT_RESERVE_TOKENS
    if policy.max_model_len != FIT or not unsaid or not isinstance(longest, Fit):
        return
    if longest.longest.answer_tokens is None:
        what = "text and answer" if longest.longest.text is None else "the answer"
        yield Check(
            ANSWER,
            "warn",
            f"{TEXT_RESERVE_TOKENS:,} tokens for {what}: the longest prompt does not say. With "
            f"--max-model-len fit vLLM cuts longer answers short",
            "--text-reserve-tokens N says it, max_tokens in the requests too",
        )


def served_answers(unsaid: int, tokens: int) -> Check:
    """Of `unsaid` requests that were served in rehearsal with answers of so many `tokens`."""
    return Check(
        SERVED_ANSWER,
        "warn",
        f"{tokens:,} tokens in {several(unsaid, 'request')} of the rehearsed traffic, which do not "
        "say. Longer ones keep the KV cache longer: fewer requests run at once, and more wait",
        "max_tokens in the requests of --requests says it",
    )


def step(tokens: int, device: str) -> Check:
    """Where neither a GPU nor a number was named."""
    return Check(
        STEP,
        "warn",
        f"{tokens:,} tokens, from vllm serve's default on this machine ({device}). It is written, "
        "so it stays so on a GPU whose own default is another: slower prefill where that is more, "
        "more memory for the encoder where it is less",
        "--gpu NAME takes that GPU's default, --max-num-batched-tokens N says it",
    )


RULES = (
    Rule((COUNT,), {CheckStage.DECIDED: 55}, _counts, frozenset({Need.CORPUS})),
    Rule((ANSWER,), {CheckStage.DECIDED: 75}, _answer),
)
