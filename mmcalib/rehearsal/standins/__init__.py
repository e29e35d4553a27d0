"""Stand-ins for what a CUDA machine would provide to vLLM. One module per concern, each installed once."""
