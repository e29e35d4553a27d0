"""Runs in the child process only, started as `python -m mmcalib.child`: vLLM is imported here."""
