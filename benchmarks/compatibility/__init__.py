"""What each supported release of vLLM can be asked for; see `benchmarks/compat.py`."""
