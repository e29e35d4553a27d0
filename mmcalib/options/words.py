"""Values as the command line says them. What cannot be read is a ValueError of the words."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Literal

from mmcalib.derive.policy import FIT
from mmcalib.domain.shapes import MODALITIES, Modality


def counts(words: Sequence[str]) -> dict[Modality, int]:
    """`image=4 video=0`."""
    return dict(map(_count, words))


def _count(words: str) -> tuple[Modality, int]:
    modality, _, number = words.partition("=")
    if modality not in MODALITIES or not number.isdecimal():
        raise ValueError(words)
    return modality, int(number)


def shares(words: Sequence[str]) -> float | dict[Modality, float]:
    """One share for all modalities together, or one for each."""
    found: dict[Modality, float] = {}
    for word in words:
        modality, _, number = word.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if not modality and len(words) == 1 and not math.isnan(share):
            return share
        if modality not in MODALITIES or math.isnan(share):
            raise ValueError(word)
        found[modality] = share
    return found


def context(words: str) -> int | Literal["fit"]:
    """Tokens, or fit."""
    if words == FIT:
        return FIT
    try:
        return int(words)
    except ValueError:
        raise ValueError(words) from None


def media_options(words: str) -> dict[str, dict[str, Any]]:
    """JSON of modality -> options, as `vllm serve --media-io-kwargs` takes it."""
    try:
        given = json.loads(words)
    except ValueError:
        given = None
    if not isinstance(given, dict) or any(
        modality not in MODALITIES or not isinstance(options, dict)
        for modality, options in given.items()
    ):
        raise ValueError(words)
    return given
