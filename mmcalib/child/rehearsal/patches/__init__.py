"""Patches in place of what a CUDA machine would provide to vLLM: one module per concern."""
