"""How near the rehearsal comes to memory figures that vLLM printed on real GPUs."""
