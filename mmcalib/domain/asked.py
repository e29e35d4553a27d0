"""What a request asks of the context beside its items, as far as no model is needed to tell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """`messages` turns with `text_bytes` of UTF-8 in all that a template may write of them, after
    normalisation where that is longer; `tool_bytes` are the JSON of its tools. `answer_tokens` are
    those that it asks for, None where it does not say, and `least_answer_tokens` those that it must
    get. Without `plain` it gives the template more than that, whose length nothing bounds.
    """

    messages: int = 1
    text_bytes: int = 0
    tool_bytes: int = 0
    answer_tokens: int | None = None
    plain: bool = True
    least_answer_tokens: int = 0

    @property
    def order(self) -> tuple[int, int, int, int, bool, int]:
        """A sort key."""
        answer = -1 if self.answer_tokens is None else self.answer_tokens
        words = self.messages, self.text_bytes, self.tool_bytes
        return *words, answer, self.plain, self.least_answer_tokens
