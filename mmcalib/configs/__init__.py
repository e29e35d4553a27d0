"""Configurations of vLLM as users keep them: one module for each form."""
