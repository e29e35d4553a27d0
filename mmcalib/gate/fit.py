"""Decide whether requests fit the context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mmcalib.domain.items import RequestText, TextBound
from mmcalib.domain.shapes import Modality
from mmcalib.releases.constants import MIN_ANSWER_TOKENS


@dataclass(frozen=True, slots=True)
class TokenRange:
    """A range of tokens; `most` is None if unbounded."""

    least: int
    most: int | None

    @classmethod
    def exactly(cls, tokens: int) -> TokenRange:
        return cls(tokens, tokens)

    @property
    def exact(self) -> bool:
        return self.least == self.most

    def __add__(self, other: TokenRange) -> TokenRange:
        known = self.most is not None and other.most is not None
        most = self.most + other.most if known else None  # type: ignore[operator]
        return TokenRange(self.least + other.least, most)


# An uncounted text: vLLM rejects an empty prompt.
UNBOUNDED = TokenRange(1, None)


def required_answer(tokens: int) -> int:
    """The least answer that vLLM must have room for."""
    return max(MIN_ANSWER_TOKENS, tokens)


def accepts_answer(asks: int | None, least: int, max_model_len: int) -> bool:
    """Check whether vLLM accepts a request for `asks` tokens that must get `least`, as
    `SamplingParams._verify_args` (vllm/sampling_params.py) and `TokenizeParams.__post_init__`
    (vllm/renderers/params.py) of 0.32 do; the former sees the answer after it was cut.
    """
    return asks is None or least <= asks <= max_model_len


@dataclass(frozen=True, slots=True)
class ContextNeeds:
    """Tokens of the context that a request needs: its items, its text within the template, the
    answer that it requests, None if it sets no length, and the least that it must get.
    """

    items: TokenRange
    text: TokenRange
    answer_tokens: int | None = None
    least_answer_tokens: int = 0

    @property
    def least(self) -> int:
        return required_answer(self.least_answer_tokens)

    @property
    def prompt(self) -> TokenRange:
        return self.items + self.text

    def context_tokens(self, reserve_tokens: int) -> int | None:
        """The least context for prompt and whole answer, with the reserve if none is set."""
        if self.prompt.most is None:
            return None
        return self.prompt.most + self.answer(reserve_tokens)

    def answer(self, reserve_tokens: int) -> int:
        return max(self.least, reserve_tokens if self.answer_tokens is None else self.answer_tokens)


def judge_fit(needs: ContextNeeds, max_model_len: int) -> Literal["fits", "no", "unknown"]:
    """Check whether vLLM accepts the request. It cuts an answer that has too little room, and does
    not reject it (`get_max_tokens`, vllm/entrypoints/serve/utils/api_utils.py, 0.32).
    """
    room = max_model_len - needs.least
    accepts = accepts_answer(needs.answer_tokens, needs.least, max_model_len)
    if not accepts or needs.prompt.least > room:
        return "no"
    most = needs.prompt.most
    return "fits" if most is not None and most <= room else "unknown"


def bound_text(bound: TextBound, request: RequestText, items: Mapping[Modality, int]) -> TokenRange:
    """Bound the text of a request that was not tokenised."""
    most = bound.max_tokens(request, items) if bound.compared else None
    return UNBOUNDED if most is None else TokenRange(min(1, most), most)


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Needs of one kind of prompt: the tokens of its items, of its text, and of the answer that it
    requests. A `text` of None: not in the corpus, so the reserve covers text and answer.
    """

    origin: str
    count: int
    item_tokens: int
    text: TokenRange | None = None
    answer_tokens: int | None = None
    least_answer_tokens: int = 0

    @property
    def needs(self) -> ContextNeeds:
        """A missing text counts 0."""
        items = TokenRange.exactly(self.item_tokens)
        text = self.text or TokenRange.exactly(0)
        return ContextNeeds(items, text, self.answer_tokens, self.least_answer_tokens)


@dataclass(frozen=True, slots=True)
class Fit:
    """The prompt that needs the longest context, and whether it fits, in tokens. vLLM rejects
    `prompts_too_long`, cuts answers of `prompts_cut` short; texts of `unknown` are uncounted.
    """

    longest: PromptTokens
    reserve_tokens: int
    max_model_len: int
    prompts_too_long: int
    prompts_cut: int = 0
    unknown: int = 0

    @property
    def needed_tokens(self) -> int:
        needed = self.longest.needs.context_tokens(self.reserve_tokens)
        return self.longest.item_tokens + self.reserve_tokens if needed is None else needed

    @property
    def passes(self) -> bool:
        """True if vLLM accepts them all."""
        return self.prompts_too_long == 0

    @property
    def fits_answers(self) -> bool:
        """True if all have room for their answers too."""
        return self.passes and self.prompts_cut == 0

    @property
    def problems(self) -> str:
        """Describe the prompts that do not fit whole."""
        many, cut = self.prompts_too_long, self.prompts_cut
        words = []
        if many:
            which = "one prompt is" if many == 1 else f"{many:,} prompts are"
            them = "it" if many == 1 else "them"
            words.append(f"{which} longer than the context: vLLM rejects {them}")
        if cut:
            have = "has" if cut == 1 else "have"
            words.append(f"{cut:,} {have} less room for the answer than requested or reserved")
        if self.unknown:
            words.append(f"the text of {self.unknown:,} could not be counted")
        return "; ".join(words)

    @property
    def description(self) -> str:
        """Describe what the longest needs."""
        longest = self.longest
        media = f"{longest.item_tokens} tokens of media"
        if longest.text is None:
            return f"{media} + {self.reserve_tokens} for text (assumed)"
        if longest.text.most is None:
            return f"{media} + text of unknown length"
        at_most = "" if longest.text.exact else "at most "
        requested = longest.answer_tokens
        answer = f"{self.reserve_tokens} for the answer (assumed)"
        if requested is not None:
            answer = f"{requested} for the requested answer"
        return f"{media} + {at_most}{longest.text.most} of text + {answer}"


def prompts_to_count(
    prompts: Iterable[PromptTokens],
    reserve_tokens: int,
    max_model_len: int,
    most: int | None = None,
) -> list[int]:
    """Positions of prompts to count the text of, longest first: they may exceed the context."""
    settled, needed = 0, list[int | None]()
    for prompt in prompts:
        tokens = prompt.needs.context_tokens(reserve_tokens)
        if prompt.text is None or prompt.text.exact:
            settled = max(settled, tokens or 0)
            tokens = -1
        needed.append(tokens)
    uncounted = (
        place
        for place, tokens in enumerate(needed)
        if tokens is None or tokens > min(settled, max_model_len)
    )
    return sorted(uncounted, key=lambda place: -(needed[place] or float("inf")))[:most]


def fit_prompts(
    prompts: Iterable[PromptTokens], reserve_tokens: int, max_model_len: int
) -> Fit | None:
    """Find the longest prompt and count those that do not fit; None without prompts."""
    longest, most = None, -1
    too_long = cut = unknown = 0
    for prompt in prompts:
        needed = prompt.needs.context_tokens(reserve_tokens)
        size = prompt.item_tokens if needed is None else needed
        if longest is None or size > most:
            longest, most = prompt, size
        answer = judge_fit(prompt.needs, max_model_len)
        if answer == "no":
            too_long += prompt.count
        elif answer == "unknown" or needed is None:
            unknown += prompt.count
        elif needed > max_model_len:
            cut += prompt.count
    if longest is None:
        return None
    return Fit(longest, reserve_tokens, max_model_len, too_long, cut, unknown)
