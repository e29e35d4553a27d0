"""vLLM's own startup, run on an imaginary GPU to learn what it would take of a real one."""
