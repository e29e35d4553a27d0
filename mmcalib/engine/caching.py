"""A child process whose answers are cached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmcalib.engine import messages as m
from mmcalib.engine.host import EngineHost


class CachingHost(EngineHost):
    """Caches answers, for jobs over one corpus and model; it assumes that files do not change."""

    def __init__(self, **how: Any) -> None:
        self._cache: dict[bytes, list[object]] = {}
        super().__init__(**how)

    def _converse(self, request: m.Request[Any], doing: str) -> Iterator[Any]:
        if not request.cacheable:
            yield from super()._converse(request, doing)
            return
        key = m.encode(request)
        if key in self._cache:
            yield from self._cache[key]
            return
        answers: list[object] = []
        for answer in super()._converse(request, doing):
            answers.append(answer)
            # The machine may have more free memory later, so a failure for memory is not cached.
            if not isinstance(answer, m.Interim) and not any(
                isinstance(a, m.Measured) and a.refused_by == "host_memory" for a in answers
            ):
                self._cache[key] = answers
            yield answer
