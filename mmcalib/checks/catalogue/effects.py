"""Whether each setting does something (R8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmcalib.checks.catalogue.limits import LIMIT
from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.facts import CheckFacts, Need
from mmcalib.checks.rule import CheckStage, Rule
from mmcalib.derive.effects import Effect, sizes

HAS_EFFECT = CheckId("{} has effect")
SETTINGS_EFFECT = CheckId("settings have effect")
CAP = CheckId("{} cap")


def effect_checks(effects: Sequence[Effect]) -> Iterator[Check]:
    """R8: settings that do nothing, each by name; the others in one line. Size hints have findings
    of their own.
    """
    for effect in _idle(effects):
        yield Check(HAS_EFFECT.of(effect.name), "warn", effect.words, "remove it")
    named: dict[str, list[str]] = {}
    for effect in effects:
        stated = effect.outcome == "stated" and effect.path[0] == LIMIT
        named.setdefault("bounds" if stated else effect.outcome, []).append(effect.name)
    said = (
        ("moves", "switched off once each, these move tokens, budget or bytes: "),
        ("bounds", "these only bound what a prompt may carry: "),
        ("stated", "these only state what vLLM has by default here: "),
        ("not shown", "of these tokens and budget show nothing: "),
    )
    words = "; ".join(text + ", ".join(named[key]) for key, text in said if key in named)
    if words:
        yield Check(SETTINGS_EFFECT, "pass", words)


def _idle(effects: Sequence[Effect]) -> list[Effect]:
    """Size hints without effect are not worth a warning."""
    return [e for e in effects if e.outcome == "idle" and not sizes(e.path)]


def _ineffective(facts: CheckFacts) -> Iterator[Check]:
    turned, policy = facts.decision.turns(), facts.policy
    for modality in facts.configuration.table.modalities():
        if policy.max_tokens_per_item is not None and modality not in turned:
            yield Check(
                CAP.of(modality),
                "warn",
                f"--max-tokens-per-item has no effect on {modality} items: the model's processor "
                "has no option that makes them smaller",
            )
    for knob in facts.decision.ineffective:
        yield Check(
            HAS_EFFECT.of(knob.name),
            "warn",
            "no value of it moved tokens or budget with the installed versions: not emitted",
        )


def _switched_off(facts: CheckFacts) -> Iterator[Check]:
    """R8: each setting was switched off once."""
    effects = facts.decision.effects
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
    if _idle(effects):
        remedy = "leave it out, or look for the name that this model's processor and loader heed"
        yield Check(SETTINGS_EFFECT, "warn", "; ".join(said), remedy)
    else:
        yield Check(SETTINGS_EFFECT, "pass", "; ".join(said))


_DECISION = frozenset({Need.DECISION})
RULES = (
    Rule((CAP, HAS_EFFECT), {CheckStage.DECIDED: 140}, _ineffective, _DECISION),
    Rule((SETTINGS_EFFECT,), {CheckStage.DECIDED: 150}, _switched_off, _DECISION),
)
