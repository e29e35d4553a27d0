"""Runs in the child process only, started as `python -m mmcalib.child`.

vLLM is reached through `mmcalib.releases` alone. `service` and `__main__` are on top, `rehearsal`
uses the rest, and nothing else uses `rehearsal`.
"""
