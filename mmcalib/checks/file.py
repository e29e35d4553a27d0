"""The YAML file; settings without effect."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mmcalib.checks.catalogue import (
    CONFIG_PARSING,
    EFFECT_OF,
    EMPTY_KEY,
    FALSE_KEY,
    FLAG_OVER,
    REPEATED_KEY,
    SETTINGS_EFFECT,
    TOKEN_CAP,
    UNKNOWN_KEY,
    VALUE_OF,
)
from mmcalib.checks.check import Check, line
from mmcalib.checks.facts import CheckFacts, CheckStage, Rules
from mmcalib.checks.limits import LIMIT
from mmcalib.derive.effects import Effect, sizes
from mmcalib.derive.retired import retired_among

_ARGUMENT = re.compile(r"argument (?:-\w/)*--(?P<option>[\w-]+)[^:]*: ")
# How older releases spelled limits: image=2,video=1.
_PAIRS = re.compile(r"(\w+)=(\d+)")
_OLD = re.compile(r"\w+=\d+(,\s*\w+=\d+)*")


@dataclass(frozen=True, slots=True)
class Written:
    """What a file and the flags beside it say, before vLLM reads them.

    `settings` are the file's top-level keys; `twice` those that it has more than once. `options`
    maps each option of `vllm serve`, without dashes in front, to the argument that it sets.
    """

    settings: Mapping[str, Any]
    twice: Sequence[str]
    flags: Sequence[str]
    options: Mapping[str, str]

    def argument(self, key: str) -> str | None:
        """The argument that a key sets; None where `vllm serve` has no such option."""
        name = key.partition(".")[0].removesuffix("+").replace("_", "-")
        if name in self.options:
            return self.options[name]
        # argparse takes any beginning that only one option has.
        fitting = {dest for option, dest in self.options.items() if option.startswith(name)}
        return fitting.pop() if len(fitting) == 1 else None

    def at_fault(self, refusal: str) -> str | None:
        """The key of the file whose value argparse refuses in these words."""
        option = _ARGUMENT.match(refusal)
        if option is None:
            return None
        argument = self.argument(option["option"])
        return next((key for key in self.settings if self.argument(key) == argument), None)

    def unusable(self) -> list[str]:
        """Keys without which vLLM may read the file: unknown ones, and those without a value."""
        return [
            key
            for key, value in self.settings.items()
            if value is None or (self.argument(key) is None and value is not False)
        ]


def file_findings(
    written: Written,
    refusal: str,
    values: Mapping[str, Any] | None,
    bad: Mapping[str, str] | None = None,
) -> Iterator[Check]:
    """`refusal`: vLLM's words for the file; `values`: every parsed argument; `bad`: its words for a
    key.
    """
    bad = bad or {}
    yield from _unknown(written)
    for key, value in written.settings.items():
        if value is None and written.argument(key) is not None:
            yield Check(
                EMPTY_KEY.of(key),
                "fail",
                "it has no value: vLLM reads the word None, and refuses it or takes it as a name",
                f"remove the line: without it {key} has its default",
            )
    yield from _bad_values(written, bad)
    if values is not None:
        yield from _false(written, values)
    for key in written.twice:
        last = f"the last one wins: {line(key, written.settings[key])}"
        yield Check(REPEATED_KEY.of(key), "warn", last, "keep one of them")
    yield from _overridden(written)
    lost = [] if values is None else list(_lost(written, values))
    if refusal:
        named = ", ".join(dict.fromkeys((*written.unusable(), *bad)))
        remedy = f"correct or remove: {named}" if named else "correct what it names"
        yield Check(CONFIG_PARSING, "fail", f"vllm serve refuses the file: {refusal}", remedy)
    elif lost:
        detail = f"it does not arrive as written: {'; '.join(lost)}"
        yield Check(CONFIG_PARSING, "fail", detail, "write what you want to arrive")
    else:
        count = len(written.settings) + sum(word.startswith("-") for word in written.flags)
        yield Check(CONFIG_PARSING, "pass", f"vLLM's own parser reads all {count} settings")


def _unknown(written: Written) -> Iterator[Check]:
    for key, value in written.settings.items():
        if written.argument(key) is not None:
            continue
        does = "vllm serve ends with exit code 2"
        if value is False:
            does = "vllm serve drops it without a word, because it is false"
        detail = f"no option of the installed vllm serve: {does}"
        yield Check(UNKNOWN_KEY.of(key), "fail", detail, _instead(written, key, value))


def _instead(written: Written, key: str, value: Any) -> str:
    """A retired option's successor, the option that the key may mean, or none."""
    for knob in retired_among({key.replace("-", "_"): value}):
        today = f"{knob.today.replace('--', '')} today" if knob.today else "nothing replaces it"
        return f"remove it: gone since vLLM {knob.absent_in}; {today}"
    name = key.replace("_", "-")
    if name in ("max-pixels", "min-pixels", "size", "fps", "num-crops", "max-dynamic-patch"):
        return line("mm_processor_kwargs", {key.replace("-", "_"): value})
    near = difflib.get_close_matches(name, written.options, n=1, cutoff=0.6)
    return line(near[0], value) if near else "remove it"


def _bad_values(written: Written, bad: Mapping[str, str]) -> Iterator[Check]:
    for key, words in bad.items():
        value = written.settings[key]
        if value is None:
            continue
        pairs = _PAIRS.findall(value) if isinstance(value, str) and _OLD.fullmatch(value) else []
        remedy = f"correct or remove: {line(key, value)}"
        if pairs:
            remedy = line(key, {name: int(count) for name, count in pairs})
        yield Check(VALUE_OF.of(key), "fail", words, remedy)


def _false(written: Written, values: Mapping[str, Any]) -> Iterator[Check]:
    """vLLM's file reader asks the wrong parser for `--no-x`, and drops what it does not find."""
    for key, value in written.settings.items():
        argument = written.argument(key)
        if value is not False or argument is None or values.get(argument) is False:
            continue
        name, now = key.replace("_", "-"), values.get(argument)
        remedy = f"no-{name}: true"
        if name.startswith("no-"):
            remedy = f"{name.removeprefix('no-')}: true"
        elif f"no-{name}" not in written.options:
            remedy = f"remove the line: vllm serve has no --no-{name}"
        yield Check(
            FALSE_KEY.of(key),
            "fail",
            f"vllm serve drops `{key}: false` from a file without a word; "
            f"{argument} stays "
            f"{'at its default, which is not false' if now is None else str(now).lower()}",
            remedy,
        )


def _overridden(written: Written) -> Iterator[Check]:
    """Flags win over the file; who sets both should know."""
    said: dict[str, str] = {}
    for flag in written.flags:
        name = flag[2:].partition("=")[0]
        if flag.startswith("--") and (argument := written.argument(name)) is not None:
            said[argument] = flag
    for key, value in written.settings.items():
        flag = said.get(written.argument(key) or "", "")
        if flag:
            detail = f"{flag} on the command line wins over `{line(key, value)}` in the file"
            yield Check(FLAG_OVER.of(key), "warn", detail, "keep one of them")


def _lost(written: Written, values: Mapping[str, Any]) -> Iterator[str]:
    """Numbers and mappings that do not arrive; a false has its own finding."""
    flags = {written.argument(flag[2:].partition("=")[0]) for flag in written.flags}
    for key, value in written.settings.items():
        argument = written.argument(key)
        if argument is None or argument in flags or "." in key:
            continue
        if isinstance(value, list) and not value:
            yield f"{key}: an empty list is dropped"
        elif isinstance(value, int | float | Mapping) and not isinstance(value, bool):
            arrived = values.get(argument)
            if isinstance(arrived, type(value)) and _differs(value, arrived):
                yield f"{key}: wrote {value!r}, vLLM reads {arrived!r}"


def _differs(wrote: Any, arrived: Any) -> bool:
    """Whether anything arrives otherwise; vLLM makes its config classes of some mappings."""
    if isinstance(wrote, Mapping) and isinstance(arrived, Mapping):
        return any(
            _differs(value, arrived[name]) for name, value in wrote.items() if name in arrived
        )
    return bool(wrote != arrived)


def effect_checks(effects: Sequence[Effect]) -> Iterator[Check]:
    """R8: settings that do nothing, each by name; the others in one line."""
    for effect in _idle(effects):
        yield Check(EFFECT_OF.of(effect.name), "warn", effect.words, "remove it")
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


def check_ineffective(facts: CheckFacts) -> Iterator[Check]:
    turned, policy = facts.decision.turns(), facts.policy
    for modality in facts.configuration.table.modalities():
        if policy.max_tokens_per_item is not None and modality not in turned:
            yield Check(
                TOKEN_CAP.of(modality),
                "warn",
                f"--max-tokens-per-item has no effect on {modality} items: the model's processor "
                "has no option that makes them smaller",
            )
    none = "no value of it moved tokens or budget with the installed versions: not emitted"
    for knob in facts.decision.ineffective:
        yield Check(EFFECT_OF.of(knob.name), "warn", none)


def check_effects(facts: CheckFacts) -> Iterator[Check]:
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


RULES: Final[Rules] = {
    check_ineffective: {CheckStage.DECIDED: 190},
    check_effects: {CheckStage.DECIDED: 200},
}
