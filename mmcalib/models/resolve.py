"""Find a model's folder: local, in the hub's cache, on the hub, or bundled."""

from __future__ import annotations

import glob
import hashlib
import http.client
import importlib.util
import os
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import platformdirs

from mmcalib.errors import ModelError
from mmcalib.models.catalogue import assume_build, find_model, suggest_model
from mmcalib.models.checkpoint import checkpoint_files, materialise
from mmcalib.models.fetch import REACH_TIMEOUT_S
from mmcalib.processes import STDERR, Worker, WorkerFailed, safe_environment
from mmcalib.text import one_line

WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth")
# Enough for 50 MB on a slow line, but not for a server that sends byte by byte.
FETCH_TIMEOUT_S = 300.0
# A snapshot without any of these cannot tokenize: another tool fetched only config.json.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json")
# vLLM has no reader of GGUF since 0.31 (its plug-in is vllm-gguf-plugin).
_GGUF_HINT = (
    "--model with the model it was made from, or an AWQ, GPTQ, FP8 or NVFP4 checkpoint; vLLM "
    "reads GGUF only with the plug-in vllm-gguf-plugin"
)
# A place in the hub cache of any machine, such as models--ORG--NAME/snapshots/COMMIT.
_CACHED = re.compile(r"(?:^|/)models--([^/]+)")
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})


class HubUnavailable(Exception):  # noqa: N818 - a reason to continue, not a failure
    """The hub did not deliver the model; the message gives the reason."""


class HuggingFaceHub:
    """The hub, through `huggingface_hub` if that is installed."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._cache = str(cache_folder(env))
        self.endpoint = env.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        self.is_offline = env.get("HF_HUB_OFFLINE", "").lower() in TRUE_WORDS

    def fetch(self, model_id: str) -> Path:
        """Return a folder with the model's small files. Raises HubUnavailable."""
        if self.is_offline:
            raise HubUnavailable("HF_HUB_OFFLINE is set")
        if importlib.util.find_spec("huggingface_hub") is None:
            raise HubUnavailable("huggingface_hub is not installed")
        if not is_reachable(self.endpoint, REACH_TIMEOUT_S):
            raise HubUnavailable(f"{self.endpoint} did not answer within {REACH_TIMEOUT_S:g} s")
        own = {"HF_HUB_DISABLE_XET": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        env = safe_environment(os.environ, sys.path) | own
        # The client's progress goes to stderr.
        with Worker("mmcalib.models.fetch", send_s=1, env=env, output=STDERR) as client:
            client.send((model_id, self.endpoint, self._cache))
            try:
                folder, why = client.receive(FETCH_TIMEOUT_S)
            except WorkerFailed as error:
                folder, why = "", f"the client process {error}"
        if not folder:
            raise HubUnavailable(one_line(f"{self.endpoint}: {why.splitlines()[0]}"))
        return Path(folder)


def is_reachable(endpoint: str, timeout_s: float) -> bool:
    """True if the endpoint answers in time, including name lookup and proxies."""
    if not endpoint.startswith(("http://", "https://")):
        return False
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - http(s) only
        try:
            urllib.request.urlopen(request, timeout=timeout_s).close()  # noqa: S310
        except urllib.error.HTTPError:
            pass  # an error page is an answer
        except (OSError, ValueError, http.client.HTTPException):
            return
        answered.set()

    # In a thread, because the socket's timeout does not limit the name lookup.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s)
    return answered.is_set()


def cached_snapshot(model_id: str, env: Mapping[str, str]) -> Path | None:
    """Return the model's snapshot in the hub cache, if it has a config and a tokenizer."""
    repo = cache_folder(env) / f"models--{model_id.replace('/', '--')}"
    ref = repo / "refs" / "main"
    try:
        commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else ref.name
    except (OSError, ValueError):
        return None
    if os.path.basename(commit) != commit or commit in ("", ".", ".."):
        return None
    snapshot = repo / "snapshots" / commit
    tokenizes = any((snapshot / name).is_file() for name in TOKENIZER_FILES)
    return snapshot if (snapshot / "config.json").is_file() and tokenizes else None


def require_weights(model: str, env: Mapping[str, str]) -> None:
    """Check that the folder or the hub's cache has weights, or that the hub answers.

    Raises ModelError. A revision in the cache counts, whichever it is.
    """
    repo = cache_folder(env) / f"models--{model.replace('/', '--')}"
    folders = [Path(model).expanduser(), *repo.glob("snapshots/*")]
    if any(next(folder.glob(f"*{end}"), None) for folder in folders for end in WEIGHT_FILES):
        return
    if folders[0].is_dir():
        raise ModelError(f"{model} has no weights", hint=f"ls {model}: *.safetensors is missing")
    hub = HuggingFaceHub(env)
    if hub.is_offline or not is_reachable(hub.endpoint, REACH_TIMEOUT_S):
        why = "HF_HUB_OFFLINE is set" if hub.is_offline else f"{hub.endpoint} does not answer"
        raise ModelError(
            f"no weights of {model} on this machine, and {why}",
            hint="-- ./folder of the checkpoint; or -- --load-format dummy, to try requests",
        )


def cache_folder(env: Mapping[str, str]) -> Path:
    """Return HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub or the one in ~/.cache."""
    if explicit := env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE"):
        return Path(explicit).expanduser()
    if home := env.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home()) / ".cache"
    return Path(base).expanduser() / "huggingface" / "hub"


Source = Literal["local", "hub", "bundled"]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A folder that vLLM can open."""

    id: str
    path: str
    source: Source
    notes: tuple[str, ...]


def hub_name(model: str) -> str:
    """Return the id of a model that is named by its place in a hub's cache; other names stay."""
    cached = _CACHED.search(model)
    return cached[1].replace("--", "/") if cached else model


def resolve(
    model: str,
    *,
    cache_dir: Path,
    env: Mapping[str, str] | None = None,
    hub: HuggingFaceHub | None = None,
    architecture: str | None = None,
) -> ResolvedModel:
    """Find the model's folder, or write a bundled geometry below `cache_dir`/geometry.

    `env` (default: the process environment) names the hub and its cache. A place in another
    machine's hub cache is the hub's id. `architecture`, if known, improves the hint. Raises
    ModelError if the model is not found, or if a local folder has no config.json.
    """
    env = os.environ if env is None else env
    name = hub_name(model)
    if name != model and not Path(model, "config.json").expanduser().exists():
        found = resolve(name, cache_dir=cache_dir, env=env, hub=hub, architecture=architecture)
        return replace(found, notes=(*found.notes, f"{model} is {name} of the hub"))
    if (local := Path(model).expanduser()).is_dir():
        return ResolvedModel(model, str(_with_config(model, local).resolve()), "local", ())
    if model.endswith(".gguf"):
        raise ModelError(f"{model} is a GGUF file, without config.json", hint=_GGUF_HINT)
    if model.startswith(("/", "./", "../", "~")) or model.count("/") > 1:
        other = f"--model with the model's hub id, or another folder: ls {os.path.dirname(model)}"
        hint = _suggestion(model, env, architecture) or other
        raise ModelError(f"{model} is not a folder on this machine", hint=hint)
    if (snapshot := cached_snapshot(model, env)) is not None:
        return ResolvedModel(model, str(snapshot), "hub", ())
    try:
        fetched = (hub or HuggingFaceHub(env)).fetch(model)
        return ResolvedModel(model, str(_with_config(model, fetched)), "hub", ())
    except HubUnavailable as reason:
        why = str(reason)
    geometry = find_model(model) or assume_build(model)
    if geometry is None:
        hint = _suggestion(model, env, architecture) or "mmcalib list models shows the bundled ones"
        raise ModelError(
            f"model {model} not found: not a local folder, not in the hub's cache, not bundled, "
            f"and the hub is unavailable ({why})",
            hint=f"{hint}; or use --model ./folder",
        )
    # New facts get a new folder.
    digest = hashlib.sha256(repr(checkpoint_files(geometry)).encode()).hexdigest()[:12]
    name = f"{geometry.id.replace('/', '--')}-{digest}"
    folder = materialise(geometry, cache_dir / "geometry" / name)
    note = f"using the bundled geometry: items cost the same, text counts in bytes ({why})"
    if geometry.assumed:
        note = f"{model} is assumed to be {geometry.assumed}: its own config is not here ({why})"
    doubts = (f"bundled geometry: {doubt}" for doubt in geometry.cannot_promise)
    return ResolvedModel(geometry.id, str(folder), "bundled", (note, *doubts))


def _suggestion(model: str, env: Mapping[str, str], architecture: str | None) -> str:
    """Return what to type instead of a name that nobody has; empty if nothing is like it."""
    name = os.path.basename(model.rstrip("/"))
    for repo in cache_folder(env).glob(f"models--*--{glob.escape(name)}") if name else ():
        one = repo.name.removeprefix("models--").replace("--", "/")
        if cached_snapshot(one, env):
            return f"--model {one}"
    return suggest_model(model, architecture)


def _with_config(model: str, folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        gguf = any(folder.glob("*.gguf"))
        hint = "--model takes a folder with config.json, tokenizer and processor"
        raise ModelError(f"{model} has no config.json", hint=_GGUF_HINT if gguf else hint)
    return folder


def cache_dir() -> Path:
    """Return the folder for generated checkpoints; `MMCALIB_CACHE_DIR` overrides it."""
    folder = os.environ.get("MMCALIB_CACHE_DIR")
    return Path(folder) if folder else platformdirs.user_cache_path("mmcalib")
