"""Run vLLM's own startup on an imaginary GPU, to compute the memory it takes on a real one."""
