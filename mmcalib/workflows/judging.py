"""Judge a configuration; shared by `run`, `validate` and `plan`.

The rules of a stage judge `CheckFacts`, made from a `JudgedConfig`. `proof.prove` starts the engine
with it. Then checks in bytes from rehearsals replace those in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mmcalib.checks import corpus as data
from mmcalib.checks import engine, file, items, limits, options, reserve
from mmcalib.checks.catalogue import MEMORY_RESERVE, SIZE_HINT
from mmcalib.checks.check import Check
from mmcalib.checks.facts import CheckFacts, CorpusFacts, ExcessRequests, JudgedConfig
from mmcalib.checks.reserve import Unrehearsed, qualify_tokens_only
from mmcalib.configs.read import WrittenConfiguration
from mmcalib.domain.items import Skipped
from mmcalib.limits.costs import CostTable
from mmcalib.prediction.rehearse import Predicted
from mmcalib.workflows.corpus import LoadedCorpus

# Yields one check or several.
Rule = Callable[[CheckFacts], Iterable[Check]]

# In each stage the most harmful first. In `run`, after its decision:
DECIDED_RULES: Final[Sequence[Rule]] = (
    *(data.check_readable, data.check_blank_items, data.check_sound_lengths),
    *(data.check_accepted, data.check_served, items.check_items_admitted, data.check_counts),
    *(items.check_requests_admitted, data.check_tools, items.check_prompts_fit),
    *(data.check_answer_length, engine.check_default_starts, items.check_cap, data.check_unseen),
    *(limits.check_given_counts, items.check_still_accepted, items.check_kept_whole),
    *(items.check_shrunk, reserve.check_derived_hints, file.check_ineffective, file.check_effects),
    *(reserve.check_reserved_tokens, items.check_input_reserved),
    *(options.check_processor_cache, items.check_large_items),
)
# In `validate`, once the encoder budget is known:
WRITTEN_RULES: Final[Sequence[Rule]] = (
    lambda facts: engine.missing_parts(facts.model),
    *(file.check_variables, limits.check_written_limits),
    *(limits.check_every_limited, items.check_prompts_fit, reserve.check_written_hints),
    *(reserve.check_skipped_profile, options.check_cache_floor, reserve.check_reserved_tokens),
)
# In `validate`, for options outside the profile:
OPTION_RULES: Final[Sequence[Rule]] = (
    *(options.check_trusted_kwargs, options.check_pruning, options.check_tower_parallel),
    *(options.check_prompt_logprobs, options.check_encoder_graphs, options.check_embeddings),
    options.check_api_server,
)
# In `validate`, once the items of the data are measured:
MEASURED_RULES: Final[Sequence[Rule]] = (
    *(data.check_readable, data.check_served, data.check_sound_lengths, data.check_loaded),
    *(data.check_accepted, items.check_items_admitted, items.check_input_reserved),
    *(items.check_requests_admitted, data.check_tools, items.check_prompts_fit),
)


def judge(rules: Iterable[Rule], facts: CheckFacts) -> Iterator[Check]:
    """Yield the checks of these rules, in order."""
    for rule in rules:
        yield from rule(facts)


def corpus_facts(
    corpus: LoadedCorpus,
    config: JudgedConfig,
    table: CostTable,
    left_out: Mapping[str, str],
    unreadable: Sequence[Skipped] = (),
) -> CorpusFacts:
    """Return a corpus' facts for rules; `left_out` has the reason per unserved modality."""
    most, prompts = config.items_per_prompt, corpus.prompts
    above = [entry for entry in prompts.signatures() if not entry.signature.fits(most)]
    over = None
    if above:
        over = ExcessRequests(
            requests=sum(entry.count for entry in above),
            of=prompts.prompts(),
            first=above[0].exemplar.origin,
            most={m: max(e.signature.items(m) for e in prompts.signatures()) for m in most},
        )
    return CorpusFacts(
        files=corpus.files,
        skipped=corpus.skipped,
        table=table,
        left_out=left_out,
        over=over,
        unreadable=unreadable,
        requests=prompts.prompts(),
        tools=sum(e.count for e in prompts.signatures() if e.signature.asked.tool_bytes),
        given=sum(map(corpus.census.given_items, corpus.census.modalities())),
    )


def explain_unrehearsed(predicted: Predicted, written: WrittenConfiguration) -> Unrehearsed:
    """Return why rehearsals ended early, and the command for one of `written`, which shows it."""
    command = written.command("rehearse", predicted.gpu, "--verbose")
    # `memory on …` has the whole message, and the command shows more.
    reason = predicted.failure.reason.partition(". ")[0] if predicted.failure else ""
    reason = reason or "the profile leaves out the encoder"
    return Unrehearsed(
        f"rehearsals on {predicted.gpu.name} ended early, the first with: {reason}",
        f"{command} shows why; --validate replay on such a GPU replays the heaviest prompts",
    )


def judge_memory(
    checks: Iterable[Check], memory: Sequence[Check], config: JudgedConfig, unrehearsed: Unrehearsed
) -> list[Check]:
    """Add the checks of `memory`: the reserve in bytes replaces that in tokens, not its remedy."""
    reserved = next((check for check in memory if check.id == MEMORY_RESERVE), None)
    if reserved is None:
        return qualify_tokens_only([*checks, *memory], config, unrehearsed)
    others, failing = list[Check](), set()
    for check in checks:
        if check.status == "fail":
            failing.add(check.id)
        if check.id == MEMORY_RESERVE:
            if check.status == reserved.status == "fail":
                reserved = replace(reserved, remedy=check.remedy or reserved.remedy)
        elif reserved.status == "pass" and check.code == SIZE_HINT.code and check.status == "fail":
            others.append(replace(check, status="warn"))
        else:
            others.append(check)
    more = [reserved if check.id == MEMORY_RESERVE else check for check in memory]
    return [*others, *(c for c in more if c.id == MEMORY_RESERVE or c.id not in failing)]
