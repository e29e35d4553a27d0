"""How long the rest of a run will take, by how long it took here to open the model."""

from __future__ import annotations

from mmcalib.workflows.spec import Job

# In times of what opening took, of the sample corpus with Qwen2.5-VL-3B: whatever slows a machine
# slows both. Deriving the settings, what each proof adds, and what is left of rehearsals then.
_DERIVING = 1.5
_PROVING = {"none": 0.0, "budget": 0.5, "startup": 5.5, "replay": 12.0}
_MEMORY = 0.5
_MINUTE_S = 60
# Less than importing vLLM takes on any machine.
_IMPORT_S = 1.0


def ahead(job: Job, opening_s: float) -> str:
    """In words. A corpus of thousands of sizes takes longer to measure: its bar says how long.
    Empty where an earlier run's answer was taken, which says nothing of this one.
    """
    if opening_s < _IMPORT_S:
        return ""
    times = _DERIVING + _PROVING[job.validate] + (_MEMORY if job.gpu else 0.0)
    seconds = times * opening_s
    if seconds < _MINUTE_S:
        about = f"{max(10, round(seconds, -1)):.0f} s"
    else:
        about = f"{seconds / _MINUTE_S:.0f} min"
    return (
        f"about {about} to go for a corpus of some hundred sizes, as opening took {opening_s:.0f} s"
    )
