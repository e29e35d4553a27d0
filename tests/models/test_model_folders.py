import json
import socket
import time
from pathlib import Path

import pytest

from mmcalib.errors import ModelError
from mmcalib.models.catalogue import bundled_models, find_model, quantized_twins, suggest_model
from mmcalib.models.checkpoint import materialise
from mmcalib.models.resolve import HubUnavailable, HuggingFaceHub, is_reachable, resolve
from tests.builders import some

QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"
PACKED = "compressed-tensors"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


class FakeHub(HuggingFaceHub):
    """Has every model in one folder, or is not reached."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self.asked = folder, list[str]()

    def fetch(self, model_id: str) -> Path:
        self.asked.append(model_id)
        if self.folder is None:
            raise HubUnavailable("no network")
        return self.folder


def resolved(home: Path, model: str, hub: FakeHub | None = None):
    """By a user whose cache and home are here."""
    env = {"HOME": str(home)}
    return resolve(model, cache_dir=home / "cache", env=env, hub=hub or FakeHub())


def snapshot(home: Path, model_id: str = QWEN) -> Path:
    repo = home / ".cache/huggingface/hub" / f"models--{model_id.replace('/', '--')}"
    folder = repo / "snapshots" / "abc"
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / "main").write_text("abc")
    return folder


def test_a_local_folder_comes_first(tmp_path: Path) -> None:
    folder = materialise(bundled_models()[0], tmp_path / "mine")
    found = resolved(tmp_path, str(folder))
    assert (found.source, found.path) == ("local", str(folder))
    assert not (tmp_path / "cache").exists()


def test_a_folder_without_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json") as caught:
        resolved(tmp_path, str(tmp_path))
    assert caught.value.hint


@pytest.mark.parametrize("named", ["folder", "file", "repository"])
def test_gguf_is_answered_with_what_works(tmp_path: Path, named: str) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf/model-Q4_K_M.gguf").write_text("GGUF")
    model = {"folder": "gguf", "file": "gguf/model-Q4_K_M.gguf", "repository": "a/b"}[named]
    where = model if named == "repository" else str(tmp_path / model)
    hub = FakeHub(tmp_path / "gguf")
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        resolved(tmp_path, where, hub)
    assert "AWQ, GPTQ, FP8 or NVFP4 checkpoint" in caught.value.hint


def test_quantized_twins_have_the_size_of_the_model() -> None:
    def twins(model: str) -> list[str]:
        return quantized_twins(some(find_model(model)).values("config"))

    assert twins("Qwen/Qwen2.5-VL-7B-Instruct") == ["Qwen/Qwen2.5-VL-7B-Instruct-AWQ"]
    assert twins("Qwen/Qwen2-VL-7B-Instruct") == []


def test_a_missing_folder_is_not_looked_up_as_a_name(tmp_path: Path) -> None:
    hub = FakeHub()
    with pytest.raises(ModelError, match="is not a folder"):
        resolved(tmp_path, str(tmp_path / "gone"), hub)
    assert hub.asked == []


@pytest.mark.parametrize("place", ["/cache/huggingface/hub/", "", "~/"])
def test_a_snapshot_of_another_machine_is_the_hub_s_model(tmp_path: Path, place: str) -> None:
    where = f"{place}models--Qwen--Qwen2.5-VL-3B-Instruct/snapshots/66285546d2b8"
    found = resolved(tmp_path, where)
    assert (found.id, found.source) == (QWEN, "bundled")
    assert found.notes[-1] == f"{where} is {QWEN} of the hub"
    mine = snapshot(tmp_path)
    assert resolved(tmp_path, str(mine)).source == "local"


def test_a_path_that_ends_in_a_cached_model_is_answered_with_its_id(tmp_path: Path) -> None:
    snapshot(tmp_path, "acme/Reader")
    with pytest.raises(ModelError, match="Reader/ is not a folder on this machine") as caught:
        resolved(tmp_path, "models/of/Reader/")
    assert caught.value.hint == "--model acme/Reader"


@pytest.mark.parametrize(
    ("unknown", "architecture", "told"),
    [
        ("/mnt/models/gemma-4-E2B-it", None, "--model google/gemma-4-E2B-it"),
        ("/cache/Qwen/Qwen2___5-VL-7B-Instruct/", None, "--model Qwen/Qwen2.5-VL-7B-Instruct"),
        ("/m/Qwen3.6-35B-A3B-FP8-dynamic/", None, "--model Qwen3.6-35B-A3B-FP8-dynamic"),
        ("/m/gemma-4-31B-it-NVFP4-KV", None, "google/gemma-4-31B-it, the same name with other w"),
        ("/m/Qwen3.5-9B-GPTQ-Int4", None, "--model Qwen3.5-9B-GPTQ-Int4"),
        ("Qwen/Qwen3.7-35B-A3B", None, "such as Qwen/Qwen3.6-35B-A3B"),
        ("Qwen/Qwen2.5-VL-5B-Instruct", None, ""),
        ("OpenGVLab/InternVL2-3B", None, ""),
        ("opendatalab/MinerU2.5-1.2B", None, ""),
        ("/models/", None, ""),
        ("/models/x", "Qwen2VLForConditionalGeneration", "such as Qwen/Qwen2-VL-"),
        ("MinerU-7B", "Qwen2VLForConditionalGeneration", "such as Qwen/Qwen2-VL-7B-Instruct"),
        ("Qwen/Qwen2.5-VL-3B", "Unheard", ""),
    ],
)
def test_models_are_suggested_by_name_size_and_architecture(unknown, architecture, told) -> None:
    found = suggest_model(unknown, architecture)
    assert told in found
    assert bool(told) == bool(found)


def test_the_hub_cache_comes_second(tmp_path: Path) -> None:
    folder, hub = snapshot(tmp_path), FakeHub()
    found = resolved(tmp_path, QWEN, hub)
    assert (found.source, found.path, found.notes) == ("hub", str(folder), ())
    assert hub.asked == []


def test_a_cache_with_the_config_alone_is_not_enough(tmp_path: Path) -> None:
    (snapshot(tmp_path) / "tokenizer.json").unlink()
    found = resolved(tmp_path, QWEN)
    assert found.source == "bundled"


def test_the_hub_comes_third(tmp_path: Path) -> None:
    fetched = materialise(bundled_models()[0], tmp_path / "fetched")
    hub = FakeHub(fetched)
    found = resolved(tmp_path, "some/model", hub)
    assert (found.source, found.path) == ("hub", str(fetched))
    assert hub.asked == ["some/model"]


def test_the_bundled_geometry_comes_last_and_says_so(tmp_path: Path) -> None:
    found = resolved(tmp_path, QWEN.lower())
    assert (found.id, found.source) == (QWEN, "bundled")
    assert Path(found.path).parent == tmp_path / "cache" / "geometry"
    assert (Path(found.path) / "config.json").is_file()
    assert "no network" in found.notes[0]
    assert any("weights are dummy" in note for note in found.notes)
    again = resolved(tmp_path, QWEN)
    assert again.path == found.path


@pytest.mark.parametrize(
    ("build", "twin", "method", "words"),
    [
        ("QuantTrio/Qwen3-VL-8B-Instruct-AWQ", "Qwen/Qwen3-VL-8B-Instruct", "awq", "groups of 128"),
        ("x/gemma-4-31B-it-AWQ-4bit", "google/gemma-4-31B-it", PACKED, "of 32"),
        ("Qwen/Qwen3-VL-4B-Instruct-FP8", "Qwen/Qwen3-VL-4B-Instruct", PACKED, "128 ×"),
        ("x/Gemma-3-4B-it-FP8-Dynamic", "google/gemma-3-4b-it", PACKED, "a channel"),
        ("x/Qwen3.6-35B-A3B-GPTQ-Int4", "Qwen/Qwen3.6-35B-A3B", "gptq", "only experts"),
        ("unsloth/Qwen3.8-27B-NVFP4", "Qwen/Qwen3.8-27B", PACKED, "NVFP4"),
    ],
)
def test_a_build_that_is_missing_is_assumed_from_its_twin(
    tmp_path, build, twin, method, words
) -> None:
    found = resolved(tmp_path, build)
    assert (found.id, found.source) == (build, "bundled")
    assert found.notes[0].startswith(f"{build} is assumed to be {twin} with ")
    assert words in found.notes[0]
    config = json.loads((Path(found.path) / "config.json").read_text())
    assert config.pop("quantization_config")["quant_method"] == method
    assert config == some(find_model(twin)).values("config")


@pytest.mark.parametrize(
    ("build", "nearest"),
    [
        ("nvidia/Qwen3-VL-8B-Instruct-NVFP4", "--model Qwen/Qwen3-VL-8B-Instruct, the same name"),
        ("me/Qwen3-VL-8B-Instruct-EXL3", "--model Qwen/Qwen3-VL-8B-Instruct, the same name"),
        ("me/gemma-4-26B-A4B-it-AWQ", "--model google/gemma-4-26B-A4B-it, the same name"),
        ("me/Qwen3-VL-8B-Instruct-MTP-AWQ", "such as Qwen/Qwen3-VL-8B-Instruct"),
    ],
)
def test_no_build_is_assumed_without_a_known_method_or_a_twin(tmp_path, build, nearest) -> None:
    """NVIDIA's differ from each other; experts of 704 have no groups of 128."""
    with pytest.raises(ModelError, match="not bundled") as caught:
        resolved(tmp_path, build)
    assert nearest in caught.value.hint


def test_nobody_has_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not bundled, and the hub is unavailable") as caught:
        resolved(tmp_path, "some/unknown")
    assert "no network" in caught.value.message
    assert "mmcalib list models" in caught.value.hint


def test_offline_asks_nobody(tmp_path: Path) -> None:
    offline = {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    found = resolve(QWEN, cache_dir=tmp_path / "cache", env=offline)
    assert "HF_HUB_OFFLINE is set" in found.notes[0]


def test_a_silent_endpoint_costs_only_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        started = time.monotonic()
        assert not is_reachable(f"http://127.0.0.1:{port}", 0.3)
        assert time.monotonic() - started < 20


def test_a_closed_or_odd_endpoint_is_not_reachable_and_its_hub_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert not is_reachable(f"http://127.0.0.1:{port}", 2)
    assert not is_reachable("file:///etc/passwd", 2)
    hub = HuggingFaceHub({"HF_ENDPOINT": f"http://127.0.0.1:{port}"})
    with pytest.raises(HubUnavailable, match=r"not installed|did not answer"):
        hub.fetch(QWEN)
