"""Code of the child process, which the parent starts as `python -m mmcalib.child`.

It imports vLLM only through `mmcalib.releases`. `__main__` and `service` are the entry. `rehearsal`
imports the other modules, and only `service` imports `rehearsal`.
"""
