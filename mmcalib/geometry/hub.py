"""The Hugging Face hub: its cache on disk, and fetching a model's small files."""

from __future__ import annotations

import importlib
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

# The hub client's own default; HF_ENDPOINT moves it.
DEFAULT_ENDPOINT = "https://huggingface.co"
# Whoever is cut off should get the bundled geometry at once; a reachable hub answers far sooner.
REACH_TIMEOUT_S = 4.0
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "tokenizer*")
# A snapshot without any of these cannot tokenize: something else fetched config.json alone.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json")
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})


class HubUnavailable(Exception):  # noqa: N818 - a reason to go on, not a failure
    """The hub did not give the model; the message says why."""


class Hub(Protocol):
    """Where a model's configuration and tokenizer can be fetched from."""

    def fetch(self, model_id: str, revision: str | None) -> Path:
        """The folder with the model's small files. Raises HubUnavailable."""
        ...


class HuggingFaceHub:
    """The real hub, through `huggingface_hub` if that is installed."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._endpoint = env.get("HF_ENDPOINT", DEFAULT_ENDPOINT).rstrip("/")
        self._offline = env.get("HF_HUB_OFFLINE", "").lower() in TRUE_WORDS

    def fetch(self, model_id: str, revision: str | None) -> Path:
        if self._offline:
            raise HubUnavailable("HF_HUB_OFFLINE is set")
        try:
            client = importlib.import_module("huggingface_hub")
        except ImportError as error:
            raise HubUnavailable("huggingface_hub is not installed") from error
        if not reachable(self._endpoint, REACH_TIMEOUT_S):
            raise HubUnavailable(f"{self._endpoint} did not answer within {REACH_TIMEOUT_S:g} s")
        try:
            folder = client.snapshot_download(
                model_id,
                revision=revision,
                endpoint=self._endpoint,
                allow_patterns=list(SMALL_FILES),
                etag_timeout=REACH_TIMEOUT_S,
            )
        except Exception as error:  # the client's HTTP library, and so its errors, are not fixed
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise HubUnavailable(f"{self._endpoint}: {reason[0]}") from error
        return Path(folder)


def reachable(endpoint: str, timeout_s: float) -> bool:
    """Whether anything answers at the endpoint in time, name lookup and proxies included."""
    if not endpoint.startswith(("http://", "https://")):
        return False
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - http(s) only
        try:
            urllib.request.urlopen(request, timeout=timeout_s).close()  # noqa: S310
        except urllib.error.HTTPError:
            pass  # an error page is an answer
        except (OSError, ValueError):
            return
        answered.set()

    # A thread, because the socket's timeout does not bound the name lookup.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s)
    return answered.is_set()


def cached_snapshot(model_id: str, revision: str | None, env: Mapping[str, str]) -> Path | None:
    """The model's snapshot folder in the hub cache, when it can be configured from that alone."""
    repo = cache_folder(env) / f"models--{model_id.replace('/', '--')}"
    wanted = revision or "main"
    ref = repo / "refs" / wanted
    try:
        commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else wanted
    except OSError:
        return None
    snapshot = repo / "snapshots" / commit
    tokenizes = any((snapshot / name).is_file() for name in TOKENIZER_FILES)
    return snapshot if (snapshot / "config.json").is_file() and tokenizes else None


def cache_folder(env: Mapping[str, str]) -> Path:
    """HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub (or under XDG_CACHE_HOME)."""
    if explicit := env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE"):
        return Path(explicit).expanduser()
    if home := env.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home()) / ".cache"
    return Path(base).expanduser() / "huggingface" / "hub"
