"""Print what each stand-in replaces, by watching `replace`, so no list of targets is kept."""

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from mmcalib.models.gpus import find_gpu as find_gpu
from mmcalib.releases.release import TargetMissing
from mmcalib.releases.targets import find, replace

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    import torch

    settings = ("_accelerator_getAllocatorSettings", "_accelerator_setAllocatorSettings")
    found: dict[str, Any] = {"torch_settings": [hasattr(torch._C, name) for name in settings]}
    targets, sites = watched_install()
    found["targets"] = targets
    found["sites"] = sorted(sites)
    found["not_noticed"] = [target for target in targets if not noticed(f"{target}_elsewhere")]
    found["invented_questions"] = invented_questions()
    found.update(constants())
    print(json.dumps(found))


def watched_install() -> tuple[list[str], set[tuple[str, int]]]:
    """Targets of every `replace` of an installation, and (module's file, line) that called it."""
    from mmcalib.child.rehearsal.startup import install

    targets: list[str] = []
    sites: set[tuple[str, int]] = set()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is replace.__code__:
            assert frame.f_back is not None
            file = Path(frame.f_back.f_code.co_filename).resolve().relative_to(ROOT)
            target = frame.f_locals["target"]
            targets.append(target if isinstance(target, str) else target.name)
            sites.add((file.as_posix(), frame.f_back.f_lineno))

    sys.setprofile(watch)
    try:
        install(find_gpu("GB10"))
    finally:
        sys.setprofile(None)
    return targets, sites


def noticed(target: str) -> bool:
    """Whether a name that is not there is refused by that name."""
    try:
        find(target)
    except TargetMissing as moved:
        return target in str(moved)
    return False


def invented_questions() -> list[str]:
    """Methods of the imaginary platform that none of vLLM's CUDA platforms has."""
    import vllm.platforms.cuda as real
    from vllm.platforms import current_platform

    classes = [one for one in vars(real).values() if isinstance(one, type)]
    return [
        name
        for name in vars(type(current_platform))
        if not name.startswith("__") and not any(hasattr(one, name) for one in classes)
    ]


def constants() -> dict[str, Any]:
    """Names that stand-ins hold as data."""
    import vllm._custom_ops
    import vllm.vllm_flash_attn as attention

    from mmcalib.child.rehearsal.patches.flashinfer import Products
    from mmcalib.releases import runner, targets

    return {
        "extensions": targets.EXTENSIONS,
        "namespaces": targets.NAMESPACES,
        "write_only": sorted(targets.WRITE_ONLY),
        "flashinfer": list(Products().simulated_functions()),
        "flash_attention": [name for name in vars(attention) if not name.startswith("__")],
        "support": [name for name in dir(vllm._custom_ops) if "supports" in name],
        "runner_phases": sorted(runner.RUNNER_PHASES.values()),
        "encoder_phase": runner.ENCODER,
        "file": vllm.__file__,
    }


if __name__ == "__main__":
    main()
