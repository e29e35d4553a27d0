"""Every memory fix that vLLM's documentation and the usual guides name, a family in each module."""
