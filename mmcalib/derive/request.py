"""What a request needs of the context, and whether vLLM takes it: the one place that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mmcalib.domain.asked import Asked
from mmcalib.domain.shapes import Modality
from mmcalib.domain.text_bound import TextBound
from mmcalib.releases.constants import LEAST_ANSWER_TOKENS


@dataclass(frozen=True, slots=True)
class Between:
    """Tokens that are not exactly known; a `most` of None: nothing bounds them."""

    least: int
    most: int | None

    @classmethod
    def exactly(cls, tokens: int) -> Between:
        return cls(tokens, tokens)

    @property
    def exact(self) -> bool:
        return self.least == self.most

    def __add__(self, other: Between) -> Between:
        known = self.most is not None and other.most is not None
        most = self.most + other.most if known else None  # type: ignore[operator]
        return Between(self.least + other.least, most)


# What nobody counted: vLLM takes no prompt that is empty.
UNBOUNDED = Between(1, None)


def least_answer(tokens: int) -> int:
    """Of a request that must get so many."""
    return max(LEAST_ANSWER_TOKENS, tokens)


def answers(asks: int | None, least: int, max_model_len: int) -> bool:
    """Whether vLLM takes a request that asks for so many tokens and must get `least`: as
    `SamplingParams._verify_args` (vllm/sampling_params.py) and `TokenizeParams.__post_init__`
    (vllm/renderers/params.py) of 0.32 say; the former sees the answer as it was cut.
    """
    return asks is None or least <= asks <= max_model_len


@dataclass(frozen=True, slots=True)
class Needs:
    """What a request needs of the context, in tokens: its items as they stand in it, its text with
    what the template writes around, the answer that it asks for, None where it does not say, and
    the least that it must get.
    """

    items: Between
    text: Between
    answer_tokens: int | None = None
    least_answer_tokens: int = 0

    @property
    def least(self) -> int:
        return least_answer(self.least_answer_tokens)

    @property
    def prompt(self) -> Between:
        return self.items + self.text

    def whole(self, reserve_tokens: int) -> int | None:
        """The smallest context that holds the prompt and the whole answer; `reserve_tokens` stand
        for an answer of which nothing is said.
        """
        if self.prompt.most is None:
            return None
        return self.prompt.most + self.answer(reserve_tokens)

    def answer(self, reserve_tokens: int) -> int:
        asked = reserve_tokens if self.answer_tokens is None else self.answer_tokens
        return max(self.least, asked)


def takes(needs: Needs, max_model_len: int) -> Literal["fits", "no", "unknown"]:
    """Whether vLLM takes the request. An answer for which less room is left than it asks for is cut
    short, not refused (`get_max_tokens`, vllm/entrypoints/serve/utils/api_utils.py, 0.32).
    """
    if not answers(needs.answer_tokens, needs.least, max_model_len):
        return "no"
    room = max_model_len - needs.least
    if needs.prompt.least > room:
        return "no"
    most = needs.prompt.most
    return "fits" if most is not None and most <= room else "unknown"


def text_tokens(bound: TextBound | None, asked: Asked, items: Mapping[Modality, int]) -> Between:
    """What the bound says of a request that nobody has tokenised."""
    if bound is None or not bound.compared:
        return UNBOUNDED
    most = bound.most(asked, items)
    return UNBOUNDED if most is None else Between(min(1, most), most)
