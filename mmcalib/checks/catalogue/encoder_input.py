"""What a step gives the encoder beyond what vLLM profiles."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import Dialect
from mmcalib.checks.facts import CheckFacts
from mmcalib.checks.rule import CheckStage, Rule
from mmcalib.derive.encoder_input import Excess, excesses

INPUT_RESERVED = CheckId("{} input reserved")


def excess_check(excess: Excess, dialect: Dialect) -> Check:
    """A warning, not a failure: memory follows the encoder's input, but not that alone; the bytes
    are a rehearsal's to say.
    """
    seqs = excess.max_num_seqs
    fewer = dialect.say(flags=f"-- --max-num-seqs {seqs}", lines=f"max-num-seqs: {seqs}")
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
        f"{fewer}, or {lower}" if excess.max_num_seqs else lower,
        (cost.exemplar,),
    )


def _input_reserved(facts: CheckFacts) -> Iterator[Check]:
    """What R4 in tokens cannot see."""
    judged = facts.configuration
    for excess in excesses(judged.table, judged.budget, judged.plain, facts.items):
        yield excess_check(excess, facts.dialect)


RULES = (
    Rule((INPUT_RESERVED,), {CheckStage.DECIDED: 170, CheckStage.MEASURED: 60}, _input_reserved),
)
