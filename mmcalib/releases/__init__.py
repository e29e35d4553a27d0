"""The layer on vLLM: all that is imported from it, replaced in it, and taken over from it.

Releases are told apart in one way, by date: `VLLM_0_32.reached` asks the installed version. To ask
whether an attribute is there (`hasattr`, `except ImportError`) would take a renamed one for an old
release, and go on by rules that no longer hold; by date it fails by its name at the first call.
A date says when a rule began, is found by its symbol, and goes with the releases before it. What
may be missing for other reasons (a figure that a worker has not measured) is read as None.

`release` has the dates, `constants` what holds without vLLM and may be imported by all; the other
modules import it, have a noun each, and run in the child alone.
"""
