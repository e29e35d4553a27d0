"""Items per prompt of each modality (R1), and where each number comes from."""

from __future__ import annotations

from collections.abc import Mapping

from mmcalib.census.prompts import PromptCensus
from mmcalib.derive.costs import CostTable
from mmcalib.derive.limits import Count
from mmcalib.derive.policy import Policy
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.wording import several


def counts(
    opened: ModelInfo, policy: Policy, table: CostTable, prompts: PromptCensus
) -> dict[Modality, Count]:
    """Per modality that the model takes: given, from the requests, or one where nothing says."""
    found: dict[Modality, Count] = {}
    for modality, most in opened.modalities.items():
        count = _count(modality, opened, policy, table, prompts)
        if most is not None and count.value > most:
            reason = f"{count.reason}; the model takes at most {most}"
            count = Count(most, reason, "computed", count.exemplar)
        elif count.value == most and count.label == "assumed":
            count = Count(most, f"the model takes at most {most} per prompt", "computed")
        found[modality] = count
    return found


def _count(
    modality: Modality,
    opened: ModelInfo,
    policy: Policy,
    table: CostTable,
    prompts: PromptCensus,
) -> Count:
    given = policy.count.get(modality)
    if given is not None:
        return Count(given, f"given: --count {modality}={given}", "given")
    present = table.of(modality)
    if not present:
        why = f"no {modality} in the corpus"
        if any(r.shape.modality == modality for r in table.refusals):
            why = f"vLLM refuses every {modality} of the corpus"
        elif modality in table.failed:
            why = f"vLLM can load no {modality} of the corpus"
        return Count(0, why, "computed")
    if not prompts.prompts():
        reason = "no request structure given; --requests or --count says how many"
        return Count(1, f"one per prompt: {reason}", "assumed")
    share = policy.share_of(modality)
    if isinstance(policy.coverage, Mapping):
        value = prompts.items_per_prompt(modality, share)
    else:
        value = prompts.covering(tuple(opened.modalities), share)[modality]
    if value == 0:
        reason = f"no covered request carries a {modality}, but the corpus holds some"
        return Count(1, f"one per prompt: {reason}", "assumed")
    total = prompts.prompts()
    why = f"the most in any of {several(total, 'request')}"
    if share < 1:
        why = f"covers {share:.1%} of {several(total, 'request')}"
    origin = min(
        entry.exemplar.origin
        for entry in prompts.signatures()
        if entry.signature.items(modality) >= value
    )
    return Count(value, why, "computed", origin)
