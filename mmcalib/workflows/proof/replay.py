"""Real prompts through the started engine, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

from mmcalib.census.prompts import PromptCensus
from mmcalib.checks.check import Check
from mmcalib.checks.facts import Configuration
from mmcalib.checks.reserve import REPLAY
from mmcalib.domain.items import Skipped
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Replay, Replayed, ReplayPrompt
from mmcalib.progress import Progress
from mmcalib.releases.constants import ABOVE_LIMIT, NO_CHAT_TEMPLATE
from mmcalib.workflows.media_files import Files, files, messages_of_files
from mmcalib.workflows.proof.burst import Burst, burst
from mmcalib.workflows.proof.fill import filled
from mmcalib.workflows.proof.startup import Started

# Answering a prompt also runs the language model over its tokens; per token that took at most
# this share of the encoder's time on the bundled models at the cut depth.
_ANSWER_SHARE = 1.5
_TOO_HEAVY = "would take longer than --startup-budget, or more memory than is free,"


def choose_burst(
    prompts: PromptCensus,
    decision: Configuration,
    started: Started,
    within_s: float,
    scratch: Path,
    files: Files = files,
) -> Burst:
    """The prompts to replay within about `within_s`, judged by what the profile took or, where it
    was left out for time, was estimated to take, and in the memory that is free. Made-up items lie
    in `scratch`.
    """
    figures, profiled = started.figures, decision.adequacy.profiled_tokens
    rate = figures.encoder_seconds_per_token
    spent = figures.profile_estimate_s if figures.profile_s is None else figures.profile_s
    if spent and profiled:
        rate = spent / profiled
    affordable = within_s / (rate * (1 + _ANSWER_SHARE)) if rate else float("inf")
    if figures.most_step_tokens is not None:
        affordable = min(affordable, figures.most_step_tokens)
    table, counts, step = decision.table, decision.counts, figures.budget_tokens
    chosen = with_files(burst(prompts, table, counts, step, affordable), files)
    return filled(chosen, table, counts, step, affordable, scratch / "made-up")


def replay(host: EngineHost, chosen: Burst, progress: Progress) -> Replayed:
    """Submit the burst to the started engine and wait for all answers."""
    if not chosen.prompts and not chosen.admit:
        return Replayed((), 0.0, 0)
    with progress.step(f"replaying {len(chosen.prompts) + len(chosen.admit)} prompts"):
        request = Replay(chosen.prompts, chosen.admit)
        return host.ask(request, "replaying prompts")


def with_files(chosen: Burst, files: Files) -> Burst:
    """The burst with files for all its media, without the prompts that have one which cannot be
    decoded.
    """
    every = [_with_files(prompts, files) for prompts in (chosen.prompts, chosen.admit)]
    prompts, admit = ([one for one in found if one is not None] for found in every)
    read = zip(chosen.embeds, every[0], strict=True)
    return replace(
        chosen,
        prompts=tuple(prompts),
        embeds=tuple(embeds for embeds, prompt in read if prompt is not None),
        admit=tuple(admit),
        unreadable=sum(found.count(None) for found in every),
    )


def _with_files(prompts: Sequence[ReplayPrompt], files: Files) -> list[ReplayPrompt | None]:
    found = messages_of_files([prompt.messages for prompt in prompts], files)
    return [
        None if isinstance(messages, Skipped) else replace(prompt, messages=messages)
        for prompt, messages in zip(prompts, found, strict=True)
    ]


def leave_out_exhausting(chosen: Burst, replayed: Replayed) -> tuple[Burst, Replayed]:
    """Both without the prompts that this machine had no memory for: too heavy, and not rejected."""
    every = (*replayed.answers, *replayed.admitted)
    out = {one.origin for one in every if one.out_of_memory}
    answered = [p.origin not in out for p in chosen.prompts]
    burst = replace(
        chosen,
        prompts=tuple(compress(chosen.prompts, answered)),
        embeds=tuple(compress(chosen.embeds, answered)),
        admit=tuple(p for p in chosen.admit if p.origin not in out),
        too_heavy=chosen.too_heavy + len(out),
    )
    kept = replace(
        replayed,
        answers=tuple(a for a in replayed.answers if a.origin not in out),
        admitted=tuple(a for a in replayed.admitted if a.origin not in out),
    )
    return burst, kept


def rejected(replayed: Replayed) -> list[str]:
    """Prompts that the engine did not take or not answer, with its words."""
    return [f"{a.origin}: {a.error}" for a in (*replayed.answers, *replayed.admitted) if a.error]


def without_template(replayed: Replayed) -> bool:
    """Whether the model has no chat template, so that nothing could be asked of it."""
    every = (*replayed.answers, *replayed.admitted)
    return bool(every) and all(NO_CHAT_TEMPLATE in one.error for one in every)


def mismatched(chosen: Burst, replayed: Replayed) -> list[str]:
    """Prompts whose items the engine counted otherwise than they were measured."""
    measured = {prompt.origin: prompt.item_tokens for prompt in (*chosen.prompts, *chosen.admit)}
    return [
        f"{answer.origin}: measured {measured[answer.origin]}, engine {answer.item_tokens}"
        for answer in (*replayed.answers, *replayed.admitted)
        if not answer.error and tuple(sorted(answer.item_tokens)) != measured[answer.origin]
    ]


def _origins(replayed: Replayed) -> tuple[str, ...]:
    return tuple(answer.origin for answer in (*replayed.answers, *replayed.admitted))


def replay_check(chosen: Burst, replayed: Replayed, step_tokens: int) -> Check:
    """No rejection, no failure, and the engine's token counts equal to the measured ones."""
    name, more = REPLAY, "--startup-budget SECONDS allows more, or run on a GPU machine"
    if without_template(replayed):
        why = "none replayed: the model has no chat template, without which vLLM takes no chat"
        return Check(name, "skip", why, "chat_template.jinja in the model's folder, if it chats")
    refused, differing = rejected(replayed), mismatched(chosen, replayed)
    if refused:
        words = "; ".join(refused[:3])
        cure = "mend these requests; --validate startup replays none"
        if ABOVE_LIMIT.search(words):
            cure = "raise the limit that it names"
        return Check(name, "fail", words, cure, _origins(replayed))
    if differing:
        said, cure = "; ".join(differing[:3]), "report this as a bug of mmcalib"
        return Check(name, "fail", said, cure, _origins(replayed))
    admitted = f", {len(chosen.admit)} others admitted" if chosen.admit else ""
    if not chosen.prompts:
        detail = f"all {chosen.too_heavy} prompts {_TOO_HEAVY} here"
        if chosen.unreadable:
            detail = f"{chosen.unreadable} prompts have an item that cannot be read or decoded"
        return Check(name, "skip", f"none answered{admitted}: {detail}", more)
    step, own = replayed.largest_encoder_step_tokens, len(chosen.prompts) - chosen.made_up
    made = f" and {chosen.made_up} made-up ones" if chosen.made_up else ""
    done = (
        f"{own} of the heaviest prompts{made} answered in one burst{admitted}, token counts as "
        f"measured; largest encoder step {step} of {step_tokens} tokens"
    )
    if chosen.unseen:
        done += f"; {chosen.unseen} lighter ones of the same kinds not tried"
    if chosen.unreadable:
        done += (
            f"; left out, because an item cannot be read or decoded in time: {chosen.unreadable}"
        )
    if chosen.too_heavy:
        done += f"; left out, because they {_TOO_HEAVY}: {chosen.too_heavy}"
    elif not chosen.fills_step:
        done += "; --startup-budget did not allow a burst that fills a step"
    else:
        return Check(name, "pass", done)
    return Check(name, "warn", done, more)
