"""`mmcalib doctor`, `mmcalib serve`, and `mmcalib list`: what mmcalib knows."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import MISSING, asdict
from pathlib import Path
from typing import Literal

from mmcalib.cli.command import QUIET, print_json
from mmcalib.errors import EngineError, UsageError, VerdictError
from mmcalib.options.option import argument, option, options, switch


@options
class DoctorOptions:
    as_json: bool = switch("Print the checks as JSON.", "--json")
    quiet: bool = QUIET


def doctor(options: DoctorOptions) -> None:
    """Check the installation and the machine, and print a fix for each problem.

    Example: mmcalib doctor
    """
    from mmcalib.cli.progress import terminal
    from mmcalib.report.terminal import print_diagnosis
    from mmcalib.results.part import first_failed
    from mmcalib.workflows.doctor import diagnose

    console, progress = terminal(quiet=options.quiet)
    diagnosis = diagnose(progress)
    if options.as_json:
        print_json(diagnosis)
    if not options.quiet:
        print_diagnosis(diagnosis, console)
    if diagnosis.verdict == "fail":
        failed = first_failed(diagnosis.checks)
        said = f"mmcalib run does not work here yet: {failed.code} {failed.name}"
        raise VerdictError(said, hint=failed.remedy)


@options
class ServeOptions:
    config: Path = option("FILE", "The file for `vllm serve --config`.", Path("out/engine.yaml"))
    flags: list[str] | None = argument("[-- VLLM FLAGS]", "Flags of `vllm serve`, after --.")


def serve(options: ServeOptions) -> None:
    """Run `vllm serve` where its own script fails to start.

    The script looks for a package named vllm, which vLLM's CPU build is not, and it imports
    torchvision, which fails if only torch is a CPU build. Elsewhere use `vllm serve`. With
    `--load-format dummy` it serves two layers of the model with random weights, to try requests.

    Example: mmcalib serve --config out/engine.yaml -- --port 8000
    """
    from mmcalib.configs.read import read_configuration
    from mmcalib.engine.environment import become_server
    from mmcalib.models.cut import CUT_LAYERS, cut_checkpoint
    from mmcalib.models.resolve import cache_dir, require_weights, resolve
    from mmcalib.version import vllm_version

    config = options.config
    if not config.is_file():
        raise UsageError(f"--config {config}: no such file", hint="mmcalib run --model M --data D")
    if vllm_version() is None:
        raise EngineError("vLLM is not installed", hint="mmcalib doctor")
    written, words = read_configuration(config, options.flags or ()), list(options.flags or ())
    pairs = (f"{name} {value}" for name, value in written.settings.items())
    named = " ".join([*pairs, *written.flags]).replace("_", "-").replace("=", " ")
    model = written.model_name
    if model and "load-format dummy" in named:
        folder = resolve(model, cache_dir=cache_dir()).path
        cut = cut_checkpoint(Path(folder), cache_dir() / "served" / model.replace("/", "--"))
        print(f"Serving {CUT_LAYERS} layers of {model}; random weights, so answers mean nothing")
        # Compiling takes longer than answers. vLLM reads a model among the flags only in front.
        small = ("--enforce-eager", "--kv-cache-memory-bytes", str(2 << 30))
        words = [str(cut), "--served-model-name", model, *small, *written.flags]
    elif model and "load-format" not in named:  # other loaders have weights elsewhere
        require_weights(model, os.environ)
    sys.stdout.flush()
    become_server([*words, "--config", str(config)], os.environ)


@options
class ListOptions:
    what: Literal["models", "gpus", "profiles", "checks"] = argument(
        "models|gpus|profiles|checks",
        "The list to print.",
        MISSING,
        wrong="{given} is not models, gpus, profiles or checks",
        hint="mmcalib list models",
    )
    words: list[str] | None = argument(
        "[WORD]...", "Parts of the name, such as qwen3 or 4090; codes of checks, such as MM031."
    )
    as_json: bool = switch("Print a JSON list.", "--json")


def list_known(options: ListOptions) -> None:
    """List models that need no download, GPUs for --gpu, profiles for --requests, or checks.

    Example: mmcalib list models qwen3

    Example: mmcalib list gpus rtx

    Example: mmcalib list checks MM031
    """
    lists = {"models": _list_models, "gpus": _list_gpus, "checks": _list_checks}
    lists["profiles"] = _list_profiles
    lists[options.what](options.words or (), as_json=options.as_json)


def _list_checks(codes: Sequence[str], *, as_json: bool) -> None:
    from mmcalib.checks.catalogue import CHECKS, check_of_code

    listed = [check_of_code(code) for code in codes] or list(CHECKS.values())
    if as_json:
        keys = ("code", "name", "explanation")
        print_json([{key: getattr(one, key) for key in keys} for one in listed])
        return
    for one in listed:
        print(f"{one.code}  {one.name}" + (f": {one.explanation}" if codes else ""))


def _list_profiles(words: Sequence[str], *, as_json: bool) -> None:
    from mmcalib.corpus.given import PROFILE, profile_names, read_distribution

    names = [PROFILE + name for name in profile_names() if all(word in name for word in words)]
    found = [(name, one) for name in names if (one := read_distribution(Path(name)))]
    if as_json:
        print_json([{"name": name, **asdict(one)} for name, one in found])
        return
    for name, one in found:
        print(f"{name}: {one.about}")


def _list_models(words: Sequence[str], *, as_json: bool) -> None:
    from mmcalib.models.catalogue import bundled_models
    from mmcalib.results.doctor import BundledModel

    wanted = [word.lower() for word in words]
    found = [one for one in bundled_models() if all(word in one.id.lower() for word in wanted)]
    listed = [BundledModel.of(one) for one in found]
    if as_json:
        print_json(listed)
    elif not listed:
        print("no bundled model matches; mmcalib list models shows all", file=sys.stderr)
    else:
        width = max(len(model.id) for model in listed)
        for model in listed:
            print(f"{model.id:<{width}}  {', '.join(model.modalities)}")


def _list_gpus(words: Sequence[str], *, as_json: bool) -> None:
    from mmcalib import text
    from mmcalib.models import gpus

    wanted = [gpus.fold_name(word) or word.lower() for word in words]
    listed = [
        gpu
        for gpu in gpus.catalogue_gpus()
        if all(word in gpus.fold_name(gpu.name) or word in gpu.name.lower() for word in wanted)
    ]
    if as_json:
        print_json(listed)
        return
    if not listed:
        print(f"no GPU matches; describe yours instead: {gpus.ANY_GPU_EXAMPLE}", file=sys.stderr)
        return
    width = max(len(gpu.name) for gpu in listed)
    print(f"{'GPU':<{width}}     memory  capability", file=sys.stderr, flush=True)
    for gpu in listed:
        memory, capability = text.gib(gpu.total_bytes), gpu.compute_capability
        rest = "inferred" if gpu.total_status == "inferred" else ""
        print(f"{gpu.name:<{width}}  {memory:>9}  {capability:<10}  {rest}".rstrip())
    print(
        "Memory is what torch reports on Linux, from public sources unless marked inferred. "
        "WSL 2 reports more: pass it with --gpu-memory.",
        file=sys.stderr,
    )
