"""A hub that lies, and checkpoints with a config.json that nobody can mean."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mmcalib.errors import ModelError
from mmcalib.models import resolve as subject
from mmcalib.models.cut import MOST_CONFIG_BYTES, read_config
from mmcalib.models.resolve import HubUnavailable, HuggingFaceHub, cached_snapshot
from tests.security.servers import Connection, Server, server

pytest.importorskip("huggingface_hub")
MODEL, OWN = "evil/model", "models--evil--model"
SHA = "a" * 40
FILES = ("config.json", "tokenizer.json")
Behave = Callable[[Connection], object]


def hub(
    *,
    sha: object = SHA,
    files: Sequence[object] = FILES,
    etag: str = "abc",
    commit: str = SHA,
    size_bytes: int | None = None,
) -> Behave:
    """The hub's answers, of which one is not what it should be."""

    def as_json(connection: Connection, data: object) -> None:
        said = json.dumps(data).encode()
        connection.answer("200 OK", "Content-Type: application/json", body=said)

    def behave(connection: Connection) -> None:
        if "/tree/" in connection.path:
            listed = [{"type": "file", "path": one, "size": 2, "oid": "0" * 40} for one in files]
            as_json(connection, listed)
        elif connection.path.startswith("/api/models/"):
            siblings = [{"rfilename": one} for one in files]
            as_json(connection, {"id": MODEL, "_id": "x", "sha": sha, "siblings": siblings})
        elif "/resolve/" in connection.path:
            length = f"Content-Length: {size_bytes or 2}"
            named = (f'ETag: "{etag}"', f"X-Repo-Commit: {commit}", length)
            connection.answer("200 OK", *named, body=b"{}")
            while size_bytes and connection.send(bytes(1 << 20)):
                pass
        else:
            connection.answer("200 OK", "Content-Length: 0")

    return behave


def fetch(folder: Path, monkeypatch: pytest.MonkeyPatch, at: Server) -> Path:
    home = folder / "deep" / "down" / "hf"
    home.mkdir(parents=True)
    variables = {"HF_HOME": str(home), "HF_ENDPOINT": at.url, "no_proxy": "*"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return HuggingFaceHub(os.environ).fetch(MODEL)


def elsewhere(folder: Path) -> list[str]:
    """Files that are not where this model belongs."""
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    own = {OWN, "CACHEDIR.TAG"}
    return [str(path) for path in files if not own & set(path.parts)]


def test_a_good_hub_gives_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(hub(files=[*FILES, "modeling_evil.py", "pytorch_model.bin"])) as good:
        found = fetch(tmp_path, monkeypatch, good)
    # Code is read, and runs only with --trust-remote-code.
    assert sorted(p.name for p in found.iterdir()) == sorted([*FILES, "modeling_evil.py"])
    assert found.name == SHA
    assert elsewhere(tmp_path) == []
    assert cached_snapshot(MODEL, os.environ) == found


UP = "../../../../../evil"


@pytest.mark.parametrize(
    "behave",
    [
        hub(files=[*FILES, f"{UP}.json"]),
        hub(files=[*FILES, "/tmp/mmcalib-evil.json"]),
        hub(sha=UP, commit=UP),
        hub(commit=UP),
        hub(etag=f"{UP}.json"),
        hub(etag="../../other/blobs/abc"),
        hub(etag="../../../../../secret.json"),
        hub(sha=7),
        hub(files=[7, None, {}]),
        lambda connection: connection.answer("200 OK", body=b"[" * 1_000_000),
        lambda connection: connection.answer("302 Found", f"Location: {connection.path}"),
        lambda connection: connection.send(b"\0" * 1000),
    ],
    ids=[
        *("name", "absolute-name", "commit", "commit-of-a-file", "etag", "sibling", "link"),
        *("number", "names", "deep", "redirects", "no-http"),
    ],
)
def test_a_lie_is_one_line_and_writes_nothing_elsewhere(tmp_path, monkeypatch, behave) -> None:
    secret = tmp_path / "deep" / "secret.json"
    secret.parent.mkdir()
    secret.write_text("{}")
    with server(behave) as bad, pytest.raises(HubUnavailable) as raised:
        fetch(tmp_path, monkeypatch, bad)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) <= 200
    assert elsewhere(tmp_path) == [str(secret)]
    assert not Path("/tmp/mmcalib-evil.json").exists()
    links = [path for path in tmp_path.rglob("*") if path.is_symlink()]
    assert not any("secret" in os.readlink(link) for link in links)


def test_a_file_without_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(hub(size_bytes=1 << 40)) as bad, pytest.raises(HubUnavailable):
        fetch(tmp_path, monkeypatch, bad)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(file.stat().st_size for file in files) <= 3 << 28


def test_a_hub_that_dribbles_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "FETCH_TIMEOUT_S", 4.0)

    def dribble(connection: Connection) -> None:
        connection.answer("200 OK", "Content-Length: 1000000")
        while connection.path != "/" and connection.send(b" ") and connection.wait(0.1):
            pass

    with server(dribble) as bad, pytest.raises(HubUnavailable, match="more than 4 s"):
        fetch(tmp_path, monkeypatch, bad)


@pytest.mark.parametrize("ref", [b"../../../other", b"/etc", b"..", b"\xff\xfe", b""])
def test_a_ref_leads_to_no_other_folder(tmp_path: Path, ref: bytes) -> None:
    repo = tmp_path / OWN
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_bytes(ref)
    for folder in (repo / "snapshots", tmp_path / "other"):
        folder.mkdir()
        for name in FILES:
            (folder / name).write_text("{}")
    assert cached_snapshot(MODEL, {"HF_HUB_CACHE": str(tmp_path)}) is None


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b" " * (MOST_CONFIG_BYTES + 1),
        b"\xff\xfe{}",
        b"",
        b"null",
        b'"' + b"a" * 1000,
        b'{"a": 1' + b"0" * 10_000 + b"}",
    ],
    ids=["lists", "long", "bytes", "empty", "null", "open", "number"],
)
def test_a_config_that_cannot_be_read_is_one_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ModelError) as raised:
        read_config(tmp_path)
    assert "\n" not in raised.value.message
    assert "config.json" in raised.value.message
