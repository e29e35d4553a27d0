"""A calibration as programs hold it: kept in a file, and asked whether an item fits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr

from mmcalib.admission.admits import admit_item
from mmcalib.admission.counting import Counting
from mmcalib.corpus.grammar import Grammar
from mmcalib.derive.admission import Admission
from mmcalib.files import write_text
from mmcalib.results.calibration import CalibrationDocument, calibration_in, read_calibration
from mmcalib.results.part import verdict_words
from mmcalib.storage.location import allowing
from mmcalib.text import several


class Calibration(CalibrationDocument):
    __doc__ = CalibrationDocument.__doc__

    _counting: tuple[object, Counting | None] | None = PrivateAttr(default=None)
    _grammar: tuple[object, Grammar] | None = PrivateAttr(default=None)

    @property
    def counting(self) -> Counting | None:
        """What counts texts without vLLM, by the checkpoint's files; None where nothing does."""
        if self._counting is None or self._counting[0] is not self.costs:
            how = self.costs.counting
            model = str(self.engine_config.get("model", self.model.id))
            content = str(self.costs.grammar.get("content", ""))
            self._counting = self.costs, Counting(model, how, content) if how and content else None
        return self._counting[1]

    @property
    def grammar(self) -> Grammar:
        """What vLLM takes in a request, as the server that is configured does."""
        given = self.engine_config
        tools = bool(given.get("enable_auto_tool_choice") and given.get("tool_call_parser"))
        embeds = bool(given.get("enable_mm_embeds") or given.get("enable_prompt_embeds"))
        asked = self.costs, tools, embeds
        if self._grammar is None or self._grammar[0] != asked:
            self._grammar = asked, Grammar(self.costs.grammar, tools=tools, embeds=embeds)
        return self._grammar[1]

    def admits(
        self,
        item: Any,
        *,
        allowed_local_media_path: str | os.PathLike[str] | None = None,
        allowed_media_domains: Sequence[str] = (),
    ) -> Admission:
        """Whether one item or chat request fits. Needs no vLLM.

        `item` is a path, URL, bytes or binary file, of which the header is read; a `PIL.Image`;
        sound as `(array, rate_hz)`; a chat request, whose files lie below
        `allowed_local_media_path` (default: the working folder); or a shape. What cannot be read
        does not fit, and what is elsewhere is unknown unless it is on one of
        `allowed_media_domains`, which then sends its header.

        Raises TypeError for anything else, and UsageError as `gate` does, or for a request that
        leads outside that folder.
        """
        # Only requests have texts.
        counting = self.counting if isinstance(item, Mapping) else None
        with allowing(allowed_media_domains):
            return admit_item(self.gate, item, allowed_local_media_path, counting, self.grammar)

    def __repr__(self) -> str:
        """One line: the whole is thousands, which `to_json` has."""
        budget, corpus = self.budget.calibrated, self.corpus
        limits = self.limits.items()
        counts = {m: one["count"] if isinstance(one, dict) else one for m, one in limits}
        parts = [
            f"{self.model.id}, vLLM {self.tool['vllm']}",
            f"verdict {verdict_words(self.verdict, self.checks, self.corpus.losses())}",
            f"{several(corpus.items, 'item')} in {several(corpus.prompts, 'request')}",
            *(f"{count} {modality} per prompt" for modality, count in counts.items()),
            f"encoder budget {budget.encoder_budget_tokens:,} tokens",
        ]
        memory = self.memory.calibrated
        if memory.kv_cache_tokens is not None:
            parts.append(f"KV cache {memory.kv_cache_tokens:,} tokens on {memory.gpu or 'here'}")
        return f"<{type(self).__name__} of {'; '.join(parts)}>"

    __str__ = __repr__

    def __getstate__(self) -> dict[Any, Any]:
        """What is made of the fields is made again where they arrive."""
        state = super().__getstate__()
        private = {"_gate": None, "_counting": None, "_grammar": None}
        return {**state, "__pydantic_private__": private}

    def save(self, path: str | Path) -> None:
        """Write as JSON, atomically. Raises OutputError when that is not possible."""
        write_text(Path(path), self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote, or the one of a folder of results. Raises UsageError for anything
        else.
        """
        return read_calibration(calibration_in(Path(path)), cls)
