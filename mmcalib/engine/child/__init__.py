"""Runs in the child process only. Everything that touches vLLM's internals is here."""
