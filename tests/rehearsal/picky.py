"""Users' own parts of an engine that refuse to work."""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor


class Picky(LogitsProcessor):  # type: ignore[misc] # vLLM has no stubs
    def add_request(self, *args: object) -> bool:
        raise ValueError("needs\nextra_args")

    apply = add_request


class NeverLong(Scheduler):  # type: ignore[misc] # vLLM has no stubs
    """Starts nothing while the first that waits is long."""

    waiting: Any

    def schedule(self, *args: Any) -> Any:
        waiting, is_long = self.waiting, any(one.num_tokens > 500 for one in self.waiting)
        self.waiting = type(waiting)() if is_long else waiting
        scheduled = super().schedule(*args)
        self.waiting = waiting
        return scheduled
