"""The model hub: asked, unless the environment forbids it, and never for longer than a moment."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from mmcalib.checks.check import Check, CheckId
from mmcalib.models import bundled
from mmcalib.models.hub import DEFAULT_ENDPOINT, TRUE_WORDS, cache_folder, reachable
from mmcalib.results.doctor import Hub

TIMEOUT_S = 3.0

MODEL_HUB = CheckId("model hub")


def ask_hub(env: Mapping[str, str]) -> Hub:
    """HF_ENDPOINT says where the hub is, HF_HUB_OFFLINE that it is not to be asked."""
    endpoint = env.get("HF_ENDPOINT", DEFAULT_ENDPOINT).rstrip("/")
    if env.get("HF_HUB_OFFLINE", "").lower() in TRUE_WORDS:
        return Hub(endpoint=endpoint, state="offline")
    answers = reachable(endpoint, TIMEOUT_S)
    return Hub(endpoint=endpoint, state="reachable" if answers else "unreachable")


def hub_check(hub: Hub, env: Mapping[str, str]) -> Check:
    """Never a reason not to run: a folder, the hub's cache and the bundled models remain."""
    left = f"a folder, {cache_folder(env)} and the {len(bundled())} of `mmcalib list models` remain"
    if hub.state == "offline":
        return Check(MODEL_HUB, "skip", f"HF_HUB_OFFLINE is set: {left}", "unset HF_HUB_OFFLINE")
    if hub.state == "unreachable":
        detail = f"{hub.endpoint} did not answer within {TIMEOUT_S:g} s: {left}"
        remedy = "export HF_HUB_OFFLINE=1 (saves the wait), or export HF_ENDPOINT=https://A.MIRROR"
        return Check(MODEL_HUB, "warn", detail, remedy)
    if importlib.util.find_spec("huggingface_hub") is None:
        detail = f"{hub.endpoint} answers, but its client is not installed: {left}"
        return Check(MODEL_HUB, "warn", detail, 'pip install "huggingface-hub>=0.24"')
    return Check(MODEL_HUB, "pass", f"{hub.endpoint} answers", "")
