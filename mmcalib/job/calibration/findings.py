"""Checks that follow from what was read, measured and decided, before any engine starts."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.census.prompts import PromptCensus
from mmcalib.checks.catalogue.corpus import UNSEEN
from mmcalib.checks.catalogue.encoder_input import excess_check
from mmcalib.checks.catalogue.engine import DEFAULT_CONFIGURATION
from mmcalib.checks.catalogue.items import ADMITTED, CAP, CAP_HELD, KEPT_WHOLE, STILL_ACCEPTED
from mmcalib.checks.catalogue.kwargs import HAS_EFFECT, SETTINGS_EFFECT
from mmcalib.checks.catalogue.prompts import PROMPTS_FIT, REQUESTS_ADMITTED
from mmcalib.checks.catalogue.reserve import RESERVED
from mmcalib.checks.catalogue.size_hints import SIZE_HINT
from mmcalib.checks.check import Check
from mmcalib.derive.costs import heaviest
from mmcalib.derive.effects import sizes
from mmcalib.derive.encoder_input import excesses
from mmcalib.derive.policy import Policy
from mmcalib.job.calibration import corpus_checks
from mmcalib.job.calibration.cache import cache_checks
from mmcalib.job.decision.decision import Decision
from mmcalib.job.read import Corpus


def findings(
    corpus: Corpus, left_out: dict[str, str], decision: Decision, policy: Policy
) -> list[Check]:
    """In the order in which they would hurt; `left_out` says why a modality is not served."""
    found = [
        corpus_checks.readable(corpus),
        corpus_checks.agreement(decision),
        *corpus_checks.refused(decision),
    ]
    found += [corpus_checks.unserved(left_out)] if left_out else []
    found += [*_admitted(decision), *_rejected(corpus.prompts, decision)]
    found += [*_fits(decision, policy), *_default(decision)]
    found += [
        *_caps_held(decision, policy),
        *_unseen(decision),
        *_refused_now(decision),
        *_kept_whole(decision, policy),
        *_hints(decision),
        *_ineffective(decision, policy),
        *_effects(decision),
        _adequate(decision, policy),
        *_input_reserved(decision),
        *cache_checks(decision, policy),
    ]
    return found


def _admitted(decision: Decision) -> Iterator[Check]:
    """The encoder cache must hold each item whole, or its request ends with HTTP 400."""
    budget = decision.budget
    limit = budget.encoder_budget_tokens
    over = [c for c in decision.table.costs.values() if c.embeds > limit]
    largest = heaviest(decision.table.costs.values())
    if largest is None:
        return
    if over:
        yield Check(
            ADMITTED,
            "fail",
            f"{sum(c.count for c in over)} items exceed the encoder cache of {limit} tokens; "
            f"{largest.exemplar} takes {largest.embeds}",
            f"--max-num-batched-tokens {largest.embeds} or more",
        )
        return
    detail = f"largest item {largest.embeds} tokens, encoder cache {limit}: {largest.exemplar}"
    yield Check(ADMITTED, "pass", detail)


def _rejected(prompts: PromptCensus, decision: Decision) -> Iterator[Check]:
    """Requests with more items than the limits admit end with HTTP 400."""
    counts = {m: count.value for m, count in decision.counts.items()}
    over = [entry for entry in prompts.signatures() if not entry.signature.within(counts)]
    if over:
        first = over[0].exemplar.origin
        yield Check(
            REQUESTS_ADMITTED,
            "warn",
            f"{sum(entry.count for entry in over)} of {prompts.prompts()} requests carry more "
            f"items than the limits admit, such as {first}: vLLM will reject them",
            "--coverage 1, --count more, or split them",
        )


def _fits(decision: Decision, policy: Policy) -> Iterator[Check]:
    result = decision.longest
    if result is None:
        return
    detail = f"{result.longest.origin}: {result.parts}, of {result.max_model_len} tokens"
    if result.whole and not result.unknown:
        yield Check(PROMPTS_FIT, "pass", detail)
    else:
        # Without a cap that the user gave, every smaller size was tried.
        other = "fewer or shorter items in such requests"
        if policy.max_tokens_per_item is not None and decision.turns():
            other = "a smaller --max-tokens-per-item"
        yield Check(
            PROMPTS_FIT,
            "warn" if result.passes else "fail",
            f"{result.trouble}; {detail}",
            f"--max-model-len {result.needed_tokens}, or {other}",
        )


def _hints(decision: Decision) -> Iterator[Check]:
    for modality, hint in decision.hints.items():
        size = ", ".join(f"{axis} {value}" for axis, value in hint.items())
        dummy = decision.budget.dummies[modality].embeds
        detail = f"{size}: vLLM's dummy costs {dummy} tokens, as the largest item does"
        yield Check(SIZE_HINT.of(modality), "pass", detail)
    for modality, why in decision.refused_hints.items():
        yield Check(
            SIZE_HINT.of(modality), "pass", f"none emitted: with the corpus' largest size {why}"
        )


def _caps_held(decision: Decision, policy: Policy) -> Iterator[Check]:
    """A cap that was asked for and that no value of the model's option reaches."""
    cap, largest = policy.max_tokens_per_item, decision.table.heaviest("image")
    knobs = [e.point.knob for e in decision.explored]
    names = [k.name for k in knobs if k.modality == "image" and not k.by_loader]
    if cap is not None and names and largest is not None and largest.tokens > cap:
        yield Check(
            CAP_HELD,
            "warn",
            f"--max-tokens-per-item {cap}: the least that {names[0]} allows is "
            f"{largest.tokens} tokens",
            "ask for no less than that",
        )


def _unseen(decision: Decision) -> Iterator[Check]:
    """Modalities that were asked for with --count and of which the corpus has no item."""
    for modality, count in decision.counts.items():
        if count.value and not decision.table.of(modality):
            most = decision.budget.max_tokens_per_item.get(modality, 0)
            yield Check(
                UNSEEN.of(modality),
                "warn",
                f"--count admits {count.value} {modality} items and the corpus holds none: vLLM's "
                f"own largest, {most} tokens, is reserved for",
                f"add {modality} files to --data",
            )


def _refused_now(decision: Decision) -> Iterator[Check]:
    """Items that vLLM takes by default and refuses under the chosen setting."""
    gone = [c for s, c in decision.default_table.costs.items() if s not in decision.table.costs]
    if gone:
        yield Check(
            STILL_ACCEPTED,
            "fail",
            f"{sum(c.count for c in gone)} items are refused under the chosen setting, such as "
            f"{gone[0].exemplar}",
            "--max-tokens-per-item larger",
        )


def _default(decision: Decision) -> Iterator[Check]:
    if decision.default_error:
        yield Check(
            DEFAULT_CONFIGURATION,
            "warn",
            f"vLLM refuses to start with its defaults: {decision.default_error}",
        )


def _kept_whole(decision: Decision, policy: Policy) -> Iterator[Check]:
    """The final setting, measured as a whole, against what was promised knob by knob."""
    if policy.prefer != "quality" or policy.max_tokens_per_item is not None:
        return
    if decision.forced:
        downscaled = sum(point.items_downscaled for point in decision.chosen)
        detail = f"{downscaled} items are downscaled, because otherwise {decision.forced}"
        remedy = "a larger --gpu or --max-model-len, or what `mmcalib plan` finds"
        yield Check(KEPT_WHOLE, "warn", detail, remedy)
        return
    before, after = decision.default_table.costs, decision.table.costs
    smaller = [c for s, c in after.items() if s in before and c.tokens < before[s].tokens]
    if smaller:
        worst = min(smaller, key=lambda cost: cost.tokens / before[cost.shape].tokens)
        yield Check(
            KEPT_WHOLE,
            "fail",
            f"{sum(c.count for c in smaller)} items are downscaled, such as {worst.exemplar}: "
            f"{worst.tokens} of {before[worst.shape].tokens} tokens",
            "--prefer throughput allows it; else report this as a bug of mmcalib",
        )
    elif decision.setting != decision.default_table.setting:
        detail = "under the chosen setting every item costs what it costs by default"
        yield Check(KEPT_WHOLE, "pass", detail)


def _ineffective(decision: Decision, policy: Policy) -> Iterator[Check]:
    turned = decision.turns()
    for modality in decision.table.modalities():
        if policy.max_tokens_per_item is not None and modality not in turned:
            yield Check(
                CAP.of(modality),
                "warn",
                f"--max-tokens-per-item has no effect on {modality} items: the model's processor "
                "has no option that makes them smaller",
            )
    for knob in decision.ineffective:
        yield Check(
            HAS_EFFECT.of(knob.name),
            "warn",
            "no value of it moved tokens or budget with the installed versions: not emitted",
        )


def _effects(decision: Decision) -> Iterator[Check]:
    """R8: each setting was switched off once. Size hints without effect are not worth a warning."""
    name, effects = SETTINGS_EFFECT, decision.effects
    if not effects:
        return
    moved = sum(effect.moved for effect in effects)
    said = [f"switched off one by one, {moved} of {len(effects)} move tokens, budget or bytes"]
    for outcome, what in (
        ("stated", "written all the same:"),
        ("not shown", "none of these shows"),
        ("idle", "removed, since nothing moves without:"),
    ):
        names = [effect.name for effect in effects if effect.outcome == outcome]
        said += [f"{what} {', '.join(names)}"] if names else []
    idle = [e for e in effects if e.outcome == "idle" and not sizes(e.path)]
    if idle:
        remedy = "leave it out, or look for the name that this model's processor and loader heed"
        yield Check(name, "warn", "; ".join(said), remedy)
    else:
        yield Check(name, "pass", "; ".join(said))


def _adequate(decision: Decision, policy: Policy) -> Check:
    """R4, in tokens."""
    found = decision.adequacy
    detail = (
        f"vLLM's startup profile encodes {found.profiled_tokens} tokens, one step at most "
        f"{found.worst_step_tokens}{found.of}: {found.ratio:.2f}"
    )
    if found.passes:
        return Check(RESERVED, "pass", detail)
    return Check(
        RESERVED,
        "warn" if policy.allow_under_reserve else "fail",
        f"under-reserved: {detail}; the engine would start and may run out of memory under load",
        "--max-num-batched-tokens a multiple of the largest item, more --max-num-seqs, another "
        "--max-tokens-per-item, or --allow-under-reserve",
    )


def _input_reserved(decision: Decision) -> Iterator[Check]:
    """What R4 in tokens cannot see."""
    counts = {m: count.value for m, count in decision.counts.items()}
    for excess in excesses(decision.table, decision.budget, decision.unhinted, counts):
        yield excess_check(excess, f"--max-num-seqs {excess.max_num_seqs}")
