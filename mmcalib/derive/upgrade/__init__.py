"""What changes between two releases of vLLM, for their user."""
