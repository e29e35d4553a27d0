"""Real prompts through the started engine, and what it makes of them."""

from __future__ import annotations

from mmcalib.census.prompts import PromptCensus
from mmcalib.derive.checks import Check
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Replay, Replayed, ReplayPrompt
from mmcalib.job.burst import Burst, burst
from mmcalib.job.decide import Decision
from mmcalib.job.startup import Started
from mmcalib.progress import Progress

# Answering a prompt also runs the language model over its tokens; per token that took at most
# this much of the encoder's time on the bundled models.
_ANSWER_SHARE = 2.5


def choose_burst(prompts: PromptCensus, decision: Decision, started: Started, s: float) -> Burst:
    """The prompts to replay within about `s` seconds."""
    rate = started.figures.encoder_seconds_per_token
    affordable = s / (rate * (1 + _ANSWER_SHARE)) if rate else float("inf")
    return burst(
        prompts, decision.table, decision.counts, started.figures.budget_tokens, affordable
    )


def replay(host: EngineHost, chosen: Burst, progress: Progress) -> Replayed:
    """Submit the burst to the started engine and wait for all answers."""
    if not chosen.prompts:
        return Replayed((), 0.0, 0)
    with progress.step(f"replaying {len(chosen.prompts)} prompts"):
        return host.ask(Replay(chosen.prompts), Replayed, "replaying prompts")


def mismatched(prompts: tuple[ReplayPrompt, ...], replayed: Replayed) -> list[str]:
    """Prompts whose items the engine counted otherwise than they were measured."""
    measured = {prompt.origin: prompt.item_tokens for prompt in prompts}
    return [
        f"{answer.origin}: measured {measured[answer.origin]}, engine {answer.item_tokens}"
        for answer in replayed.answers
        if not answer.error and tuple(sorted(answer.item_tokens)) != measured[answer.origin]
    ]


def replay_check(chosen: Burst, replayed: Replayed) -> Check:
    """No rejection, no failure, and the engine's token counts equal to the measured ones."""
    rejected = [f"{a.origin}: {a.error}" for a in replayed.answers if a.error]
    differing = mismatched(chosen.prompts, replayed)
    step = replayed.largest_encoder_step_tokens
    done = (
        f"{len(chosen.prompts)} prompts answered in one burst, largest encoder step {step} tokens"
    )
    if chosen.left_out:
        done += f"; {chosen.left_out} heavier ones left out for time"
    if not chosen.prompts:
        return Check(
            "replay",
            "skip",
            f"all {chosen.left_out} prompts would take longer than the budget here",
            "--startup-budget SECONDS allows more, or run on a GPU machine",
        )
    if rejected:
        return Check("replay", "fail", "; ".join(rejected[:3]), "raise the limit that it names")
    if differing:
        return Check("replay", "fail", "; ".join(differing[:3]), "report this as a bug of mmcalib")
    return Check("replay", "warn" if chosen.left_out else "pass", done)
