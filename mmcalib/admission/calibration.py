"""The calibration object of the library: save, load, and check items."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

from mmcalib.admission.admits import TextCounter, admit_item
from mmcalib.corpus.grammar import Grammar
from mmcalib.files import write_text
from mmcalib.gate.admission import Admission
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.part import verdict_words
from mmcalib.storage.location import allow_hosts
from mmcalib.text import plural


class Calibration(CalibrationDocument):
    __doc__ = CalibrationDocument.__doc__

    @cached_property
    def counting(self) -> TextCounter | None:
        """The text counter that uses the checkpoint's files without vLLM, if there is one."""
        how = self.costs.counting
        model = str(self.engine_config.get("model", self.model.id))
        content = str(self.costs.grammar.get("content", ""))
        return TextCounter(model, how, content) if how and content else None

    @cached_property
    def grammar(self) -> Grammar:
        """The request fields that the configured server accepts."""
        args = self.engine_config
        tools = bool(args.get("enable_auto_tool_choice") and args.get("tool_call_parser"))
        embeds = bool(args.get("enable_mm_embeds") or args.get("enable_prompt_embeds"))
        return Grammar(self.costs.grammar, tools=tools, embeds=embeds)

    def admits(
        self,
        item: Any,
        *,
        allowed_local_media_path: str | os.PathLike[str] | None = None,
        allowed_media_domains: Sequence[str] = (),
    ) -> Admission:
        """Decide whether one item or chat request fits, without vLLM.

        `item` is a path, URL, bytes or binary file (mmcalib reads only the header), a `PIL.Image`,
        pixels, a clip as its frames, audio as `(array, rate_hz)`, a shape, or a chat request with
        files in `allowed_local_media_path` (default: the working folder; others are unknown). An
        unreadable item does not fit. A remote one is unknown, unless its host is in
        `allowed_media_domains`. Raises TypeError for other types, UsageError as `gate` does.
        """
        counting = self.counting if isinstance(item, Mapping) else None
        with allow_hosts(allowed_media_domains):
            return admit_item(self.gate, item, allowed_local_media_path, counting, self.grammar)

    def __repr__(self) -> str:
        """Summarise in one line; `to_json` has it all."""
        budget, corpus = self.budget.calibrated, self.corpus
        limits = self.limits.items()
        counts = {m: one.get("count") if isinstance(one, dict) else one for m, one in limits}
        parts = [
            f"{self.model.id}, vLLM {self.tool['vllm']}",
            f"verdict {verdict_words(self.verdict, self.checks, self.corpus.losses())}",
            f"{plural(corpus.items, 'item')} in {plural(corpus.prompts, 'request')}",
            *(f"{count} {modality} per prompt" for modality, count in counts.items()),
            f"encoder budget {budget.encoder_budget_tokens:,} tokens",
        ]
        memory = self.memory.calibrated
        if memory.kv_cache_tokens is not None:
            parts.append(f"KV cache {memory.kv_cache_tokens:,} tokens on {memory.gpu or 'here'}")
        return f"<{type(self).__name__} of {'; '.join(parts)}>"

    def __getstate__(self) -> dict[Any, Any]:
        """Drop cached values; the receiving process computes them again."""
        return super(Calibration, copy(self)).__getstate__()

    def save(self, path: str | Path) -> None:
        """Write as JSON, atomically. Raises OutputError if that fails."""
        write_text(Path(path), self.to_json() + "\n")
