"""Stand-ins for what a CUDA machine would provide to vLLM: one module per concern."""
