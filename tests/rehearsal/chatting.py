"""Print each step's decisions by vLLM's `LLM.chat`: python chatting.py ENGINE_ARGS_JSON REQUESTS"""

import json
import sys
from pathlib import Path
from typing import Any


def main(engine_args: dict[str, Any], requests: Path) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(**engine_args)
    scheduler: Any = llm.llm_engine.engine_core.engine_core.scheduler
    cache, pool = scheduler.encoder_cache_manager, scheduler.kv_cache_manager.block_pool
    blocks = int(pool.get_num_free_blocks())
    steps = []
    updates = scheduler.update_from_output

    def update(output: Any, made: Any) -> Any:
        found = updates(output, made)
        if output.total_num_scheduled_tokens:
            steps.append(
                {
                    "tokens": output.total_num_scheduled_tokens,
                    "scheduled": len(output.num_scheduled_tokens),
                    "new": len(output.scheduled_new_reqs),
                    "cached": sum(r.num_computed_tokens for r in output.scheduled_new_reqs),
                    "encoded": sum(map(len, output.scheduled_encoder_inputs.values())),
                    "waiting": len(scheduler.waiting),
                    "kv_blocks": blocks - int(pool.get_num_free_blocks()),
                    "cache_tokens": int(cache.cache_size) - int(cache.num_free_slots),
                }
            )
        return found

    scheduler.update_from_output = update
    bodies = [json.loads(line) for line in requests.read_text("utf-8").splitlines()]
    sampling = [SamplingParams(max_tokens=one["max_tokens"], ignore_eos=True) for one in bodies]
    llm.chat([one["messages"] for one in bodies], sampling, use_tqdm=False)
    print(json.dumps(steps))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
