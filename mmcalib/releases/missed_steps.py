"""Steps of the scheduler that a worker did not run, told with the next that it does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(slots=True)
class Missed:
    """What a worker was not told yet, of steps that it did not run."""

    finished: set[str] = field(default_factory=set)
    preempted: set[str] = field(default_factory=set)
    freed: list[str] = field(default_factory=list)
    blocks: dict[str, tuple[list[int], ...]] = field(default_factory=dict)

    def take(self, decided: Any) -> None:
        """A step of no new request, and of one token of each, that is left out."""
        self.finished |= decided.finished_req_ids
        self.preempted |= decided.preempted_req_ids or set()
        self.freed += decided.free_encoder_mm_hashes
        for name in (*decided.finished_req_ids, *(decided.preempted_req_ids or ())):
            self.blocks.pop(name, None)
        cached = decided.scheduled_cached_reqs
        for name, new in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if new is not None:
                self.blocks[name] = _joined(self.blocks.get(name), new)

    def told_with(self, decided: Any) -> Any:
        """The step with all that was missed, which is then forgotten, as far as it is told: blocks
        of a request that the step leaves out wait for the next.
        """
        for name in (*decided.finished_req_ids, *(decided.preempted_req_ids or ())):
            self.blocks.pop(name, None)
        cached = decided.scheduled_cached_reqs
        blocks = []
        for name, new in zip(cached.req_ids, cached.new_block_ids, strict=True):
            before = self.blocks.pop(name, None)
            anew = before is None or name in cached.resumed_req_ids
            blocks.append(new if anew else _joined(before, new))
        for new_request in decided.scheduled_new_reqs:
            self.blocks.pop(new_request.req_id, None)
        told = replace(
            decided,
            scheduled_cached_reqs=replace(cached, new_block_ids=blocks),
            finished_req_ids=self.finished | decided.finished_req_ids,
            free_encoder_mm_hashes=[*self.freed, *decided.free_encoder_mm_hashes],
            preempted_req_ids=self.preempted | (decided.preempted_req_ids or set()),
        )
        self.finished, self.preempted, self.freed = set(), set(), []
        return told


def _joined(before: Any, new: Any) -> Any:
    if before is None or new is None:
        return before or new
    return tuple([*a, *b] for a, b in zip(before, new, strict=True))
