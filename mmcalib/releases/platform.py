"""Platform, environment variables, command line; imports vLLM only inside functions."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import cache
from typing import Any

from mmcalib.domain import model
from mmcalib.releases import release


def current() -> Any:
    """vLLM's own answer: `is_cpu`, `is_cuda`, `is_cuda_alike`, `device_type`."""
    from vllm.platforms import current_platform

    return current_platform


def borrow_cpu() -> None:
    """Where vLLM finds nothing to run on (a build for GPUs without one), let its processors and
    configurations take the CPU for its platform. They compute there anyway; an engine does not.
    """
    import vllm.platforms
    from vllm.platforms.interface import PlatformEnum

    # `is_unspecified` is younger than some releases that are rehearsed.
    if vllm.platforms.current_platform._enum is PlatformEnum.UNSPECIFIED:
        vllm.platforms._current_platform = _borrowed_cpu()()


def starts_engines() -> bool:
    """Whether an engine can start here: not in a build without kernels for this machine."""
    return not isinstance(current(), _borrowed_cpu())


@cache
def _borrowed_cpu() -> Any:
    from vllm.platforms.cpu import CpuPlatform

    class BorrowedCpu(CpuPlatform):  # type: ignore[misc] # vLLM has no stubs
        """The CPU's, in a build without its kernels."""

    return BorrowedCpu


def fit_block_size(config: Any) -> None:
    """Fit the KV block to every attention backend, and to a page of a hybrid model's state, as
    vLLM's executors do after loading. Before 0.19 the config itself did.
    """
    if release.VLLM_0_19.reached:
        current().update_block_size_for_backend(config)


def cuda_base() -> Any:
    """The class of CUDA platforms."""
    from vllm.platforms.cuda import CudaPlatformBase

    return CudaPlatformBase


def capability(major: int, minor: int) -> Any:
    """A compute capability as platforms tell it."""
    from vllm.platforms.interface import DeviceCapability

    return DeviceCapability(major, minor)


# The first release whose chat heeds it: 0.28 knows a file's size for transcriptions alone.
_SINCE = {
    model.AUDIO_FILE: release.VLLM_0_29,
    model.AUDIO_SECONDS: release.VLLM_0_26,
    model.AUDIO_BYTES: release.VLLM_0_28,
    model.DOWNLOAD: release.VLLM_0_29,
    model.REQUEST_BYTES: release.VLLM_0_33,
    model.PIXELS: release.VLLM_0_26,
}


def whole_numbers(names: Iterable[str]) -> dict[str, int]:
    """The values of those that this release's chat heeds."""
    from vllm import envs

    known = (name for name in names if name not in _SINCE or _SINCE[name].reached)
    return {name: int(getattr(envs, name)) for name in known}


def subtracts_graphs() -> bool:
    """Whether startup subtracts its estimate of CUDA graphs: since 0.20, by the environment."""
    from vllm import envs

    return release.VLLM_0_20.reached and bool(envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)


def loads_more(capability: tuple[int, int]) -> bool:
    """Whether this release takes more outside torch there (benchmarks/memory_allowances.toml)."""
    return capability >= (9, 0) and release.VLLM_0_20.reached


@cache
def _raising() -> Any:
    if release.VLLM_0_13.reached:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    else:
        from vllm.utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc] # vLLM has no stubs
        """vLLM's parser, except that a complaint is raised instead of ending the process."""

        def error(self, message: str) -> Any:
            raise argparse.ArgumentTypeError(message)

    return Parser


def parsers() -> tuple[Any, Any]:
    """vLLM's parser, and its part for `serve`. A complaint is an ArgumentTypeError."""
    from vllm.entrypoints.cli.serve import ServeSubcommand

    parser = _raising()(prog="vllm")
    return parser, ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))


def run() -> None:
    """vLLM's own command line, with the words of this process."""
    from vllm.entrypoints.cli.main import main

    main()


def end_groups() -> None:
    from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

    destroy_model_parallel()
    destroy_distributed_environment()
