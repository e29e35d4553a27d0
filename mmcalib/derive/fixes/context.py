"""A shorter context."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed

_MODEL_LENS = (32_768, 16_384, 8_192, 4_096)


def _context(unfixed: Unfixed) -> Iterator[Fix]:
    lengths = unfixed.kept.down("max_model_len", _MODEL_LENS)
    shorter = [tokens for tokens in lengths if tokens < unfixed.facts.max_model_len]
    for level, tokens in enumerate(shorter):
        yield Fix(
            name=f"max_model_len={tokens}",
            knob="max_model_len",
            changes={"max_model_len": tokens},
            cost="requests",
            price=f"prompt and answer have at most {tokens:,} tokens together",
            level=level,
            severity=level,
            alone=level == 0,
        )


RULES = (FixRule(20, _context),)
