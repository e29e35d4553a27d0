"""The layer on vLLM: everything mmcalib imports from it, replaces in it, or copies from it.

mmcalib tells rules of releases apart by version: `VLLM_0_32.is_reached` compares the installed one.
A test for an attribute (`hasattr`, `except ImportError`) would mistake a renamed attribute for an
old release and apply outdated rules; a version test fails at the first call and names the
attribute. The constants show when a rule began, and are deleted together with the releases before
it. A single value that may be missing (an option of some releases, a figure that a worker did not
measure) is read with a default.

`release` has the versions, `targets` the names that moved. `constants` does not need vLLM, and
every module may import it. The others run only in the child, and most of them import vLLM.
"""
