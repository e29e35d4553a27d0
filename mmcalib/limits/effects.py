"""Compare a configuration with and without one setting, to see whether the setting has effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import MODALITIES, Modality, Shape
from mmcalib.limits.values import KWARGS

SettingPath = tuple[str, ...]
# The part of `mm_processor_kwargs` for one modality.
SCOPES: Final[Mapping[Modality, str]] = {
    "image": "images_kwargs",
    "video": "videos_kwargs",
    "audio": "audio_kwargs",
}
# moves: something differs without it. stated: nothing differs, and it is written for another
# reason. idle: nothing differs. not shown: the comparison cannot show what it does.
Outcome = Literal["moves", "stated", "idle", "not shown"]

# Arguments whose entries are separate settings; their effect shows in tokens, budget and bytes.
_NESTED = ("limit_mm_per_prompt", "mm_processor_kwargs", "media_io_kwargs")
# Options of transformers' processors and of vLLM's media loaders that change the content of an
# image or how it is decoded, but never its size.
_NORMALISED = ("do_normalize", "image_mean", "image_std", "do_rescale", "rescale_factor")
_RENDERED = ("resample", "interpolation", "do_convert_rgb", "image_mode", "rgba_background_color")
_DECODED = ("backend", "video_backend", "audio_backend", "frame_recovery", "device")
_CONTENT = frozenset((*_NORMALISED, *_RENDERED, *_DECODED))
# Differences to report; those that reserve memory come first.
_MOST = 3
_STATED = "same as vLLM's default here; pinned so that upgrades don't change it"
_ADMITS = "no effect on tokens or budget here; it limits the items of a request"
_IDLE = "no effect on tokens, budget or bytes"
_NOT_SHOWN = "no measurable effect on tokens or memory"


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """Cost of one item in vLLM, or vLLM's error message."""

    tokens: int = 0
    tensor_bytes: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Figures of a configuration, those that were computed, or vLLM's `refusal`. `items` are
    witnesses; dummies count if they were built.
    """

    budget: Budget | None = None
    refusal: str = ""
    items: Mapping[Shape, ItemOutcome] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Effect:
    """The change from switching one setting off, in words."""

    path: SettingPath
    outcome: Outcome
    words: str

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def has_effect(self) -> bool:
        return self.outcome == "moves"

    def concerns(self, setting: str) -> bool:
        """Check whether `setting` is part of it; a count with a size hint has either name."""
        names = (self.name, self.name.removesuffix(".count"))
        return setting in names or setting.startswith(f"{self.name}.")


def list_settings(engine_args: Mapping[str, Any]) -> list[SettingPath]:
    """Every value that could be left out alone, in order, except the model."""
    paths: list[SettingPath] = []
    for key, value in engine_args.items():
        if key in _NESTED and isinstance(value, Mapping):
            paths += [(key, *rest) for rest in _leaves(value)]
        elif key != "model":
            paths.append((key,))
    return paths


def _leaves(value: Mapping[str, Any]) -> Iterator[SettingPath]:
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from ((key, *rest) for rest in _leaves(inner))
        else:
            yield (key,)


def remove_setting(engine_args: Mapping[str, Any], path: SettingPath) -> dict[str, Any]:
    """Remove one setting and mappings that it leaves empty; a lone count becomes a plain limit."""
    key, *rest = path
    less = dict(engine_args)
    inner = remove_setting(less[key], tuple(rest)) if rest else {}
    if not inner:
        del less[key]
    elif path[:1] != ("limit_mm_per_prompt",):
        less[key] = inner
    else:
        for modality, limit in inner.items():
            alone = isinstance(limit, Mapping) and set(limit) == {"count"}
            inner[modality] = limit["count"] if alone else limit
        less[key] = inner
    return less


def scope_option(engine_args: Mapping[str, Any], name: str, modality: Modality) -> dict[str, Any]:
    """The arguments with one flat option moved into the scope of one modality."""
    rest, scope = dict(engine_args[KWARGS]), SCOPES[modality]
    inner = {**rest.get(scope, {}), name: rest.pop(name)}
    return {**engine_args, KWARGS: {**rest, scope: inner}}


def most_changed_items(
    with_: Footprint, less: Footprint
) -> dict[Modality, tuple[Shape, ItemOutcome, ItemOutcome]]:
    """Per modality the item that an option changes most: its shape, without and with the option."""
    found: dict[Modality, tuple[Shape, ItemOutcome, ItemOutcome]] = {}
    for shape, after in with_.items.items():
        before = less.items.get(shape)
        if before is None or before.tokens == after.tokens or before.refusal or after.refusal:
            continue
        best = found.get(shape.modality)
        if best is None or abs(before.tokens - after.tokens) > abs(best[1].tokens - best[2].tokens):
            found[shape.modality] = (shape, before, after)
    return found


def is_size_hint(path: SettingPath) -> bool:
    """Check for a size hint: it may show in the profile's dummy only."""
    return path[0] == "limit_mm_per_prompt" and len(path) > 2 and path[-1] != "count"


def compare_footprints(path: SettingPath, with_: Footprint, less: Footprint) -> Effect:
    """Compare the figures that both footprints have."""
    moved = list(describe_differences(with_, less))
    if moved:
        return Effect(path, "moves", f"without it: {'; '.join(moved[:_MOST])}")
    if is_size_hint(path) or (path[0] in _NESTED[1:] and not set(path) & _CONTENT):
        return Effect(path, "idle", _IDLE)
    if path[0] == "limit_mm_per_prompt":
        return Effect(path, "stated", _ADMITS)
    if path[0] in ("max_model_len", "max_num_batched_tokens"):
        return Effect(path, "stated", _STATED)
    return Effect(path, "not shown", _NOT_SHOWN)


def describe_differences(with_: Footprint, less: Footprint) -> Iterator[str]:
    """Describe every figure of both that differs, as `what A → B`."""
    if bool(with_.refusal) != bool(less.refusal):
        yield f"vLLM fails to start: {less.refusal}" if less.refusal else "vLLM starts"
    if with_.budget is not None and less.budget is not None:
        yield from _compare_budgets(with_.budget, less.budget)
    for shape, before in with_.items.items():
        if shape in less.items:
            yield from _compare_items(f"{shape.modality} of {shape}", before, less.items[shape])


def _compare_budgets(one: Budget, other: Budget) -> Iterator[str]:
    for m in MODALITIES:
        largest = (budget.max_tokens_per_item.get(m, 0) for budget in (one, other))
        yield from _compare_tokens(f"largest {m}", *largest)
    tokens = one.encoder_budget_tokens, other.encoder_budget_tokens
    yield from _compare_tokens("encoder budget", *tokens)
    for m in MODALITIES:
        most = one.max_items_per_prompt.get(m, 0), other.max_items_per_prompt.get(m, 0)
        if most[0] != most[1]:
            yield f"{m} items per prompt in the budget {most[0]:,} → {most[1]:,}"
    before, after = (
        f"{budget.profiled_items} × {budget.profiled_modality}"
        if budget.profiled_modality
        else "nothing"
        for budget in (one, other)
    )
    if before != after:
        yield f"profiled {before} → {after}"
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        values = getattr(one, name), getattr(other, name)
        if values[0] != values[1]:
            yield f"{name} {values[0]:,} → {values[1]:,}"
    # Only the profiled modality: vLLM never runs the others.
    modality = one.profiled_modality
    if modality is not None and modality == other.profiled_modality:
        dummies = [b.dummies[modality] for b in (one, other) if modality in b.dummies]
        if len(dummies) == 2:
            costs = (ItemOutcome(dummy.embeds, dummy.tensor_bytes) for dummy in dummies)
            yield from _compare_items(f"profiled {modality}", *costs)


def _compare_items(what: str, one: ItemOutcome, other: ItemOutcome) -> Iterator[str]:
    if one.refusal or other.refusal:
        if bool(one.refusal) != bool(other.refusal):
            rejects = f"vLLM rejects {what}: {other.refusal}"
            yield rejects if other.refusal else f"vLLM accepts {what}"
    elif one.tokens != other.tokens:
        yield from _compare_tokens(what, one.tokens, other.tokens)
    elif one.tensor_bytes != other.tensor_bytes:
        yield f"{what} {one.tensor_bytes:,} → {other.tensor_bytes:,} bytes"


def _compare_tokens(what: str, one: int, other: int) -> Iterator[str]:
    if one != other:
        yield f"{what} {_format_tokens(one)} → {_format_tokens(other)} tokens"


def _format_tokens(tokens: int) -> str:
    return f"{tokens:,}" if tokens else "none"
