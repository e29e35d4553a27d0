"""Derive engine arguments from a census: measure, explore and choose, with vLLM's own budgets."""
