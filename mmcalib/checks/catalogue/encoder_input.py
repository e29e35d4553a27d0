"""What a step gives the encoder beyond what vLLM profiles."""

from __future__ import annotations

from mmcalib.checks.check import Check, CheckId
from mmcalib.derive.encoder_input import Excess

INPUT_RESERVED = CheckId("{} input reserved")


def excess_check(excess: Excess, max_num_seqs: str) -> Check:
    """A warning, not a failure: memory follows the encoder's input, but not that alone; the bytes
    are a rehearsal's to say.
    """
    cost, items = excess.cost, f"{excess.items:,} items" if excess.items > 1 else "an item"
    lower = "a lower gpu_memory_utilization leaves room without reserving it"
    return Check(
        INPUT_RESERVED.of(excess.modality),
        "warn",
        f"one step may encode {items} such as {cost.exemplar}, of {cost.embeds:,} tokens: "
        f"{excess.times:.1f} times the encoder input that vLLM profiles. It bounds a step by "
        "tokens, and the processor pads or tiles such items to more for each token; the engine "
        "may run out of memory under load, and how many bytes it takes is not known here: --gpu "
        "rehearses such a step",
        f"{max_num_seqs}, or {lower}" if excess.max_num_seqs else lower,
    )
