"""vLLM's platform, environment variables and command line; functions import vLLM when called."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from mmcalib.domain import model
from mmcalib.releases import release


def current() -> Any:
    """Return vLLM's platform: `is_cpu`, `is_cuda`, `is_cuda_alike`, `device_type`."""
    from vllm.platforms import current_platform

    return current_platform


def borrow_cpu() -> None:
    """Let a GPU build without a GPU use the CPU for processors and configs; engines fail there."""
    import vllm.platforms
    from vllm.platforms.interface import PlatformEnum

    # The oldest releases do not have `is_unspecified`.
    if vllm.platforms.current_platform._enum is PlatformEnum.UNSPECIFIED:
        from vllm.platforms.cpu import CpuPlatform

        vllm.platforms._current_platform = CpuPlatform()
        vllm.platforms._current_platform.is_borrowed = True


def starts_engines() -> bool:
    """Return True if this build of vLLM has kernels for this machine."""
    return "is_borrowed" not in vars(current())


def fit_block_size(config: Any) -> None:
    """Fit the KV block to attention and to a hybrid model's pages, as executors do since 0.19."""
    if release.VLLM_0_19.is_reached:
        current().update_block_size_for_backend(config)


def cuda_base() -> Any:
    from vllm.platforms.cuda import CudaPlatformBase

    return CudaPlatformBase


def capability(major: int, minor: int) -> Any:
    from vllm.platforms.interface import DeviceCapability

    return DeviceCapability(major, minor)


# The first release whose chat endpoint applies it, where that is not the oldest tested one; 0.28
# limits files only for transcriptions.
_SINCE = {
    model.AUDIO_FILE: release.VLLM_0_29,
    model.DOWNLOAD: release.VLLM_0_29,
    model.REQUEST_DOWNLOAD: release.VLLM_0_33,
    model.REQUEST_BYTES: release.VLLM_0_33,
    model.BODY_BYTES: release.VLLM_0_33,
}


def read_variables(names: Iterable[str]) -> dict[str, int]:
    """Return the values of those variables that this release's chat endpoint applies."""
    from vllm import envs

    applied = [name for name in names if name not in _SINCE or _SINCE[name].is_reached]
    # Python's own server reads a body of any size (vllm/envs.py:1138, 0.33).
    if model.BODY_BYTES in applied and not has_rust_front_end():
        applied.remove(model.BODY_BYTES)
    return {name: int(getattr(envs, name)) for name in applied}


def has_rust_front_end() -> bool:
    """Return True if the server processes images itself (rust/src/chat of 0.33), so counts them."""
    from vllm import envs

    return bool(getattr(envs, "VLLM_USE_RUST_FRONTEND", False))


def flashinfer_workspace_bytes() -> int:
    """Return the size of FlashInfer's workspace; older releases have no variable for it."""
    from vllm import envs

    return int(getattr(envs, "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", 394 << 20))


def uses_more_non_torch(capability: tuple[int, int]) -> bool:
    """Return True for more non-torch memory (benchmarks/memory_allowances.toml)."""
    return capability >= (9, 0) and release.VLLM_0_20.is_reached


def parsers() -> tuple[Any, Any]:
    """Return vLLM's parser and its subparser for `serve`. They raise ArgumentTypeError."""
    from vllm.entrypoints.cli.serve import ServeSubcommand

    if release.VLLM_0_13.is_reached:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    else:
        from vllm.utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc] # vLLM has no stubs
        """vLLM's parser, which raises errors instead of ending the process."""

        def error(self, message: str) -> Any:
            raise argparse.ArgumentTypeError(message)

    parser = Parser(prog="vllm")
    return parser, ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))


def run_cli() -> None:
    from vllm.entrypoints.cli.main import main

    main()


def end_groups() -> None:
    """End vLLM's process groups, so that the next rehearsal can use another number of ranks."""
    from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

    destroy_model_parallel()
    destroy_distributed_environment()
