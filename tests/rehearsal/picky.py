"""A user's logits processor that refuses the requests of vLLM's warm-up."""

from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor


class Picky(LogitsProcessor):  # type: ignore[misc] # vLLM has no stubs
    def add_request(self, *args: object) -> bool:
        raise ValueError("needs\nextra_args")

    apply = add_request
