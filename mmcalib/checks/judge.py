"""The rules of each stage, in the order in which what they find would hurt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from mmcalib.checks import corpus, file, items, limits, options, reserve
from mmcalib.checks.check import Check
from mmcalib.checks.facts import CheckFacts, CheckStage

# One check, or several that are found in one go.
Rule = Callable[[CheckFacts], Iterable[Check]]

RULES: Mapping[CheckStage, tuple[Rule, ...]] = {
    CheckStage.DECIDED: (
        corpus.check_readable,
        corpus.check_stand_ins,
        corpus.check_sound_lengths,
        corpus.check_accepted,
        corpus.check_served,
        items.check_items_admitted,
        corpus.check_counts,
        items.check_requests_admitted,
        corpus.check_tools,
        items.check_prompts_fit,
        corpus.check_answer_length,
        reserve.check_default_starts,
        items.check_cap,
        corpus.check_unseen,
        limits.check_given_counts,
        items.check_still_accepted,
        items.check_kept_whole,
        items.check_shrunk,
        reserve.check_derived_hints,
        file.check_ineffective,
        file.check_effects,
        reserve.check_reserved,
        items.check_input_reserved,
    ),
    CheckStage.WRITTEN: (
        reserve.check_parts,
        limits.check_written_limits,
        limits.check_every_limited,
        items.check_prompts_fit,
        reserve.check_written_hints,
        reserve.check_skipped_profile,
        reserve.check_cache_floor,
        reserve.check_reserved,
    ),
    CheckStage.OPTIONS: (
        options.check_trusted_kwargs,
        options.check_pruning,
        options.check_tower_parallel,
        options.check_prompt_logprobs,
        options.check_encoder_graphs,
        options.check_embeddings,
        options.check_api_server,
    ),
    CheckStage.MEASURED: (
        corpus.check_readable,
        corpus.check_served,
        corpus.check_sound_lengths,
        corpus.check_loaded,
        corpus.check_accepted,
        items.check_items_admitted,
        items.check_input_reserved,
        items.check_requests_admitted,
        items.check_prompts_fit,
    ),
}


def judge(stage: CheckStage, facts: CheckFacts) -> Iterator[Check]:
    """What the rules of one stage find."""
    for rule in RULES[stage]:
        yield from rule(facts)
