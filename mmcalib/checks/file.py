"""Checks of the YAML file, and of settings without effect."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mmcalib.checks import catalogue as ids
from mmcalib.checks.check import CHANGE_SETTING, REPORT_BUG, Check, yaml_line
from mmcalib.checks.facts import CheckFacts
from mmcalib.domain.model import BODY_BYTES
from mmcalib.errors import EngineError, VllmMoved
from mmcalib.limits.effects import Effect, is_size_hint
from mmcalib.limits.values import LIMIT
from mmcalib.releases.constants import RETIRED_BY_ARGUMENT

LANGUAGE_ONLY: Final = Check(
    ids.MEDIA_INPUT,
    "warn",
    "language_model_only: vLLM rejects every image, video and audio clip",
    "remove language-model-only",
)
_ARGUMENT = re.compile(r"argument (?:-\w/)*--(?P<option>[\w-]+)[^:]*: ")
# Older releases spelled limits so: image=2,video=1.
_PAIRS = re.compile(r"(\w+)=(\d+)")
_OLD = re.compile(r"\w+=\d+(,\s*\w+=\d+)*")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file and the flags given with it, before vLLM reads them. `settings` are the file's
    top-level keys, `repeated_keys` the repeated ones, `left_out` says which settings mmcalib cannot
    know. `options` maps each option of `vllm serve`, without leading dashes, to the argument that
    it sets.
    """

    settings: Mapping[str, Any]
    repeated_keys: Sequence[str]
    flags: Sequence[str]
    options: Mapping[str, str]
    left_out: Sequence[str] = ()

    def argument(self, key: str) -> str | None:
        """The argument that a key sets; None for a key that is no option of `vllm serve`."""
        name = key.partition(".")[0].removesuffix("+").replace("_", "-")
        if name in self.options:
            return self.options[name]
        # argparse takes any unique prefix of an option.
        fitting = {dest for option, dest in self.options.items() if option.startswith(name)}
        return fitting.pop() if len(fitting) == 1 else None

    def key_at_fault(self, refusal: str) -> str | None:
        """The key whose value argparse rejects with this message."""
        option = _ARGUMENT.match(refusal)
        if option is None:
            return None
        argument = self.argument(option["option"])
        return next((key for key in self.settings if self.argument(key) == argument), None)

    def unusable_keys(self) -> list[str]:
        """Unknown keys and those without a value. vLLM may read the file without them."""
        return [
            key
            for key, value in self.settings.items()
            if value is None or (self.argument(key) is None and value is not False)
        ]


def check_file(
    written: WrittenFile, refusal: str, values: Mapping[str, Any] | None, bad: Mapping[str, str]
) -> Iterator[Check]:
    """`refusal` is vLLM's error for the file, `bad` its errors by key, `values` all arguments."""
    for key, value in written.settings.items():
        if written.argument(key) is None:
            drops = "silently drops it, because it is false"
            does = drops if value is False else "exits with code 2"
            detail = f"the installed vllm serve has no such option and {does}"
            yield Check(ids.UNKNOWN_KEY.of(key), "fail", detail, _instead(written, key, value))
    for key, value in written.settings.items():
        if value is None and written.argument(key) is not None:
            none = "it has no value. vLLM reads the word None, and rejects it or takes it as a name"
            remedy = f"remove the line; {key} then has its default"
            yield Check(ids.EMPTY_KEY.of(key), "fail", none, remedy)
    yield from _bad_values(written, bad)
    if values is not None:
        yield from _false(written, values)
    for key in written.repeated_keys:
        last = f"vLLM takes the last one: {yaml_line(key, written.settings[key])}"
        yield Check(ids.REPEATED_KEY.of(key), "warn", last, "keep one of them")
    yield from _overridden(written)
    lost = [] if values is None else list(_lost(written, values))
    if refusal:
        named = ", ".join(dict.fromkeys((*written.unusable_keys(), *bad)))
        remedy = f"correct or remove: {named}" if named else "correct the key that it names"
        yield Check(ids.CONFIG_PARSING, "fail", f"vllm serve rejects the file: {refusal}", remedy)
    elif lost:
        detail = f"vLLM reads other values: {'; '.join(lost)}"
        yield Check(ids.CONFIG_PARSING, "fail", detail, "write the value that vLLM should read")
    elif written.left_out:
        detail = f"the value of a setting is not known: {'; '.join(written.left_out)}"
        yield Check(ids.CONFIG_PARSING, "warn", detail, "add what is left out after --")
    else:
        count = len(written.settings) + sum(word.startswith("-") for word in written.flags)
        yield Check(ids.CONFIG_PARSING, "pass", f"vLLM's own parser reads all {count} settings")


def _instead(written: WrittenFile, key: str, value: Any) -> str:
    """The remedy: a retired option's successor, the closest option, or removal."""
    if knob := RETIRED_BY_ARGUMENT.get(key.replace("-", "_")):
        today = f"use {knob.today.replace('--', '')}" if knob.today else "nothing replaces it"
        return f"remove it: vLLM {knob.absent_in} removed the option; {today}"
    name = key.replace("_", "-")
    if name in ("max-pixels", "min-pixels", "size", "fps", "num-crops", "max-dynamic-patch"):
        return yaml_line("mm_processor_kwargs", {key.replace("-", "_"): value})
    near = difflib.get_close_matches(name, written.options, n=1, cutoff=0.6)
    return yaml_line(near[0], value) if near else "remove it"


def _bad_values(written: WrittenFile, bad: Mapping[str, str]) -> Iterator[Check]:
    for key, words in bad.items():
        value = written.settings[key]
        if value is None:
            continue
        pairs = _PAIRS.findall(value) if isinstance(value, str) and _OLD.fullmatch(value) else []
        remedy = f"correct or remove: {yaml_line(key, value)}"
        if pairs:
            remedy = yaml_line(key, {name: int(count) for name, count in pairs})
        yield Check(ids.VALUE_OF.of(key), "fail", words, remedy)


def _false(written: WrittenFile, values: Mapping[str, Any]) -> Iterator[Check]:
    """Find `x: false`, which vLLM's file reader drops: it asks the wrong parser for `--no-x`."""
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
        detail = f"vllm serve silently drops `{key}: false` from a file; {argument} stays "
        detail += f"{'at its default, which is not false' if now is None else str(now).lower()}"
        yield Check(ids.FALSE_KEY.of(key), "fail", detail, remedy)


def _flag_of(written: WrittenFile) -> dict[str, str]:
    """The last flag of each argument that the command line sets."""
    named = ((written.argument(f[2:].partition("=")[0]), f) for f in written.flags if f[:2] == "--")
    return {argument: flag for argument, flag in named if argument is not None}


def _overridden(written: WrittenFile) -> Iterator[Check]:
    flag_of = _flag_of(written)
    for key, value in written.settings.items():
        flag = flag_of.get(written.argument(key) or "", "")
        if flag:
            detail = f"{flag} on the command line overrides `{yaml_line(key, value)}` in the file"
            yield Check(ids.FLAG_OVER.of(key), "warn", detail, "keep one of them")


def _lost(written: WrittenFile, values: Mapping[str, Any]) -> Iterator[str]:
    """Numbers and mappings that vLLM reads differently; a false has its own check."""
    flags = _flag_of(written)
    for key, value in written.settings.items():
        argument = written.argument(key)
        if argument is None or argument in flags or "." in key:
            continue
        if isinstance(value, list) and not value:
            yield f"{key}: vLLM drops an empty list"
        elif isinstance(value, int | float | Mapping) and not isinstance(value, bool):
            arrived = values.get(argument)
            if isinstance(arrived, type(value)) and _differs(value, arrived):
                yield f"{key}: wrote {value!r}, vLLM reads {arrived!r}"


def _differs(wrote: Any, arrived: Any) -> bool:
    """Compare, below mappings too. vLLM turns some mappings into config classes."""
    if isinstance(wrote, Mapping) and isinstance(arrived, Mapping):
        return any(_differs(value, arrived[k]) for k, value in wrote.items() if k in arrived)
    return bool(wrote != arrived)


def unreadable_file_check(problem: str) -> Check:
    """The check of a file that is not YAML, or not settings."""
    return Check(ids.CONFIG_PARSING, "fail", problem, "write one `option: value` on each line")


def read_back_check(wrote: Mapping[str, Any], reads: Mapping[str, Any] | EngineError) -> Check:
    """Compare what mmcalib wrote with what vLLM reads, or report vLLM's error."""
    name = ids.CONFIG_PARSING
    if isinstance(reads, VllmMoved):
        return Check(name, "warn", f"not checked: {reads.message}", reads.hint)
    if isinstance(reads, EngineError):
        return Check(name, "fail", reads.message, REPORT_BUG)
    differing = [
        f"{key}: wrote {wrote.get(key)!r}, vLLM reads {reads.get(key)!r}"
        for key in sorted({*wrote, *reads})
        if wrote.get(key) != reads.get(key)
    ]
    if differing:
        return Check(name, "fail", "; ".join(differing), REPORT_BUG)
    return Check(name, "pass", f"vLLM's own parser reads all {len(wrote)} settings back")


def rejected_configuration_check(refusal: str, remedy: str = "") -> Check:
    return Check(ids.CONFIGURATION_ACCEPTED, "fail", refusal, remedy or CHANGE_SETTING)


def small_batch_check(refusal: str, enough: int, *, on_gpu: bool) -> Check:
    """The check of a batch below one item; `on_gpu`: only a GPU forbids chunks."""
    where = " on a GPU" if on_gpu else ""
    remedy = f"{yaml_line('max_num_batched_tokens', enough)}, or more"
    return Check(ids.ITEM_BATCH, "fail", f"vLLM does not start{where}: {refusal}", remedy)


def untested_effects_check(error: EngineError) -> Check:
    return Check(ids.SETTINGS_EFFECT, "skip", f"not tested: {error.message}")


def effect_checks(effects: Sequence[Effect]) -> Iterator[Check]:
    """A warning for each setting without effect, and one line for the others."""
    for effect in _idle(effects):
        yield Check(ids.EFFECT_OF.of(effect.name), "warn", effect.words, "remove it")
    named: dict[str, list[str]] = {}
    for effect in effects:
        stated = effect.outcome == "stated" and effect.path[0] == LIMIT
        named.setdefault("bounds" if stated else effect.outcome, []).append(effect.name)
    intros = (
        ("moves", "these change tokens, budget or memory: "),
        ("bounds", "these only limit the items of a prompt: "),
        ("stated", "these repeat vLLM's defaults: "),
        ("not shown", "no effect on tokens or encoder budget: "),
    )
    words = "; ".join(text + ", ".join(named[key]) for key, text in intros if key in named)
    if words:
        yield Check(ids.SETTINGS_EFFECT, "pass", words)


def _idle(effects: Sequence[Effect]) -> list[Effect]:
    """Settings without effect, except size hints."""
    return [e for e in effects if e.outcome == "idle" and not is_size_hint(e.path)]


def check_variables(facts: CheckFacts) -> Iterator[Check]:
    """Warn about each limit in the environment that this server does not apply."""
    opened = facts.model
    for name in opened.server.given:
        if name not in opened.server.limits:
            detail = f"vLLM {opened.versions.get('vllm', '')}'s server does not apply this variable"
            if name == BODY_BYTES:
                detail += "; only the Rust front end of 0.33 does (VLLM_USE_RUST_FRONTEND=1)"
            yield Check(ids.EFFECT_OF.of(name), "warn", detail, f"unset {name}")


def check_ineffective(facts: CheckFacts) -> Iterator[Check]:
    turned, policy = facts.decision.shrinkable_modalities(), facts.policy
    for modality in facts.configuration.table.modalities():
        if policy.max_tokens_per_item is not None and modality not in turned:
            detail = "--max-tokens-per-item has no effect: the processor has no option that makes "
            detail += f"{modality} items smaller"
            yield Check(ids.TOKEN_CAP.of(modality), "warn", detail)
    none = "no value changed tokens or encoder budget, so engine.yaml leaves it out"
    for knob in facts.decision.ineffective:
        yield Check(ids.EFFECT_OF.of(knob.name), "warn", none)


def check_effects(facts: CheckFacts) -> Iterator[Check]:
    """Report the effect of each setting, found by leaving it out."""
    effects = facts.decision.effects
    if not effects:
        return
    moved = sum(effect.has_effect for effect in effects)
    parts = [f"left out one by one, {moved} of {len(effects)} change tokens, budget or memory"]
    for outcome, what in (
        ("stated", "same as vLLM's default:"),
        ("not shown", "no effect on tokens or encoder budget:"),
        ("idle", "no effect, so removed:"),
    ):
        names = [effect.name for effect in effects if effect.outcome == outcome]
        parts += [f"{what} {', '.join(names)}"] if names else []
    if _idle(effects):
        remedy = "leave it out, or use the name that this model's processor and loader read"
        yield Check(ids.SETTINGS_EFFECT, "warn", "; ".join(parts), remedy)
    else:
        yield Check(ids.SETTINGS_EFFECT, "pass", "; ".join(parts))
