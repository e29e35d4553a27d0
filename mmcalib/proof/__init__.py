"""The configuration through vLLM's parser and its real engine."""
