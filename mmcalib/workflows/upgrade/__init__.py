"""What changes with another release of vLLM."""
