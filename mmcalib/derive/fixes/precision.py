"""Eight bits for keys and values, and for weights."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.fix import LAST, Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed


def _kv_cache_dtype(_: Unfixed) -> Iterator[Fix]:
    yield Fix(
        name="kv_cache_dtype",
        knob="kv_cache_dtype",
        changes={"kv_cache_dtype": "fp8"},
        cost="quality",
        price="keys and values are kept in 8 bits",
    )


def _keeps_16_bits(unfixed: Unfixed) -> bool:
    kept = str(unfixed.engine_args.get("kv_cache_dtype", "auto"))
    return kept in ("auto", "bfloat16", "float16")


def _quantization(_: Unfixed) -> Iterator[Fix]:
    yield Fix(
        name="quantization",
        knob="quantization",
        changes={"quantization": "fp8"},
        cost="quality",
        price="weights in 8 bits, made at each start: measure the answers, or take a checkpoint "
        "that was quantized with care",
        severity=LAST,
    )


def _is_not_quantized(unfixed: Unfixed) -> bool:
    return not (unfixed.facts.quantized or unfixed.engine_args.get("quantization"))


RULES = (
    FixRule(90, _kv_cache_dtype, _keeps_16_bits),
    FixRule(100, _quantization, _is_not_quantized),
)
