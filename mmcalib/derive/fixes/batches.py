"""Fewer requests at once, and fewer tokens in a step."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed
from mmcalib.releases.constants import SMALL_GPU_BATCHED_TOKENS

_SEQS = (64, 16)
# vLLM's own default there, and half of it.
_BATCHED_TOKENS = (SMALL_GPU_BATCHED_TOKENS, SMALL_GPU_BATCHED_TOKENS // 2)


def _seqs(unfixed: Unfixed) -> Iterator[Fix]:
    least = unfixed.goal.at_least if unfixed.goal.kind == "concurrency" else 1
    counts = unfixed.kept.down("max_num_seqs", _SEQS)
    seqs = [count for count in counts if least <= count < unfixed.facts.max_num_seqs]
    for level, count in enumerate(seqs):
        yield Fix(
            name=f"max_num_seqs={count}",
            knob="max_num_seqs",
            changes={"max_num_seqs": count},
            cost="speed",
            price=f"at most {count} requests run at once",
            level=level,
            severity=level,
            alone=level == 0,
        )


def _batched_tokens(unfixed: Unfixed) -> Iterator[Fix]:
    facts = unfixed.facts
    largest = max(facts.largest_items.values(), default=0)
    for tokens in unfixed.kept.down("max_num_batched_tokens", _BATCHED_TOKENS):
        needed = max(tokens, facts.max_num_seqs, 0 if facts.chunks_mm_input else largest)
        if needed < facts.max_num_batched_tokens:
            yield Fix(
                name="max_num_batched_tokens",
                knob="max_num_batched_tokens",
                changes={"max_num_batched_tokens": needed},
                cost="speed",
                price=f"prompts are read {needed:,} tokens at a time: slower first answers",
            )
            return


RULES = (FixRule(70, _seqs), FixRule(80, _batched_tokens))
