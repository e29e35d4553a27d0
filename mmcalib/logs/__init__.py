"""Read the logs of vLLM servers; nothing else is needed."""
