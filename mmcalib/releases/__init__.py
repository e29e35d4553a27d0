"""The layer on vLLM: everything mmcalib imports from it, replaces in it, or copies from it.

mmcalib tells releases apart only by version: `VLLM_0_32.is_reached` compares the installed one. A
test for an attribute (`hasattr`, `except ImportError`) would mistake a renamed attribute for an old
release and apply outdated rules; a version test fails at the first call and names the attribute.
The constants show when a rule began, and are deleted together with the releases before it. A value
that may be missing for another reason (a worker did not measure it) is read as None.

`release` has the versions. `constants` does not need vLLM, and every module may import it. All
other modules import vLLM and run only in the child.
"""
