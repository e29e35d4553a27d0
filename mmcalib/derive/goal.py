"""What a plan is for: the engine starts, or starts with room for so many requests or tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from mmcalib.derive.amount import amount
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.errors import UsageError

_AT_LEAST = re.compile(r"(concurrency|kv_tokens)\s*>=\s*(\S+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Goal:
    """`fits`: the engine starts. Otherwise `at_least` requests of full length, or tokens of KV
    cache, as vLLM itself states them.
    """

    kind: Literal["fits", "concurrency", "kv_tokens"] = "fits"
    at_least: float = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "fits" else f"{self.kind}>={self.at_least:g}"

    def reached(self, found: Rehearsed) -> bool:
        if found.kv_cache_tokens is None or found.max_concurrency is None:
            return False
        match self.kind:
            case "fits":
                return True
            case "concurrency":
                return found.max_concurrency >= self.at_least
            case "kv_tokens":
                return found.kv_cache_tokens >= self.at_least

    def lacking_bytes(self, found: Rehearsed, max_model_len: int) -> int:
        """KV cache that the goal needs beyond what is there, 0 where it is reached: exact to a
        block where all layers keep every token, too much where some keep a window.
        """
        if self.reached(found):
            return 0
        tokens = {
            "fits": float(max_model_len),
            "concurrency": self.at_least * max_model_len,
            "kv_tokens": max(self.at_least, max_model_len),
        }[self.kind]
        return max(1, round(tokens * found.kv_bytes_per_token) - found.kv_cache_bytes)


def parse_goal(text: str) -> Goal:
    """`fits`, `concurrency>=16` or `kv_tokens>=200k`. Raises UsageError."""
    text = text.strip()
    if text == "fits":
        return Goal()
    match = _AT_LEAST.fullmatch(text)
    at_least = amount(match[2]) if match else None
    if match is None or not at_least:
        raise UsageError(
            f"--goal {text!r} is not a goal",
            hint="--goal fits, --goal 'concurrency>=16' or --goal 'kv_tokens>=200k'",
        )
    return Goal("concurrency" if match[1] == "concurrency" else "kv_tokens", at_least)
