"""Replacements for the parts of a CUDA machine that vLLM uses."""
