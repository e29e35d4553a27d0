"""Whether two processors made the same of one item."""

from __future__ import annotations

from mmcalib.domain.processed import Processed, TensorSpec


def differences(cpu: Processed, other: Processed, device: str) -> list[str]:
    """What is not the same in tokens, embeds, and the names, types and shapes of tensors."""
    found = [
        f"{one} {what} on the CPU, {two} on {device}"
        for what, one, two in (
            ("tokens", cpu.tokens, other.tokens),
            ("embeds", cpu.embeds, other.embeds),
        )
        if one != two
    ]
    ours = {form.name: form for form in cpu.forms}
    theirs = {form.name: form for form in other.forms}
    found += [
        f"{name} {_words(ours.get(name))} on the CPU, {_words(theirs.get(name))} on {device}"
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name) != theirs.get(name)
    ]
    return found


def _words(form: TensorSpec | None) -> str:
    if form is None:
        return "is missing"
    size = "×".join(map(str, form.shape))
    return f"{form.dtype} {size}".rstrip()
