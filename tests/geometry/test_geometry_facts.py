import pytest

from mmcalib.geometry import Geometry, bundled, find
from mmcalib.geometry.fact import STATUSES, parse_geometry

IDS = {
    "Qwen/Qwen2.5-VL-3B-Instruct",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "Qwen/Qwen2-VL-2B-Instruct",
    "Qwen/Qwen2-Audio-7B-Instruct",
    "Qwen/Qwen2.5-Omni-7B",
    "OpenGVLab/InternVL2-2B",
}

each_model = pytest.mark.parametrize("geometry", bundled(), ids=lambda g: g.id)


def test_the_bundled_models() -> None:
    assert {geometry.id for geometry in bundled()} == IDS


@each_model
def test_every_fact_has_a_status_and_a_source(geometry: Geometry) -> None:
    facts = list(geometry.facts())
    assert len(facts) > 50
    for name, fact in facts:
        assert fact.status in STATUSES, name
        assert fact.source, name


@each_model
def test_what_is_not_found_says_what_it_follows_from(geometry: Geometry) -> None:
    openings = {
        "inferred": ("sibling", "fine-tune", "arithmetic", "transformers", "vLLM"),
        "transformers-default": ("Qwen2Config",),
        "stand-in": ("mmcalib's choice", "vLLM"),
    }
    for name, fact in geometry.doubtful():
        assert fact.source.startswith(openings[fact.status]), name


@each_model
def test_doubts_are_spoken_out(geometry: Geometry) -> None:
    said = " ".join(geometry.cannot_promise)
    assert "weights are dummy" in said
    assert "tokenizer is generated" in said
    if any(fact.status == "transformers-default" for _, fact in geometry.facts()):
        assert "class defaults" in said


@each_model
def test_a_placeholder_per_modality(geometry: Geometry) -> None:
    assert set(geometry.values("placeholders")) == set(geometry.modalities)


@each_model
def test_the_config_names_the_architecture(geometry: Geometry) -> None:
    assert geometry.values("config")["architectures"] == [geometry.architecture]


@pytest.mark.parametrize(
    "spelling",
    ["Qwen/Qwen2.5-VL-3B-Instruct", "qwen/qwen2.5-vl-3b-instruct", "Qwen2.5-VL-3B-Instruct"],
)
def test_find_takes_an_id_or_its_last_part(spelling: str) -> None:
    geometry = find(spelling)
    assert geometry is not None
    assert geometry.id == "Qwen/Qwen2.5-VL-3B-Instruct"


@pytest.mark.parametrize("spelling", ["", "Qwen", "Qwen2.5-VL", "other/Qwen2.5-VL-3B-Instruct"])
def test_find_does_not_guess(spelling: str) -> None:
    assert find(spelling) is None


def document(**config: object) -> dict[str, object]:
    frame = {"id": "a/b", "architecture": "A", "modalities": [], "cannot_promise": []}
    return {**frame, "sources": {"s": "somewhere"}, "config": config}


def test_a_bare_value_is_refused() -> None:
    with pytest.raises(ValueError, match="without status and source"):
        parse_geometry(document(depth=32))


def test_an_unknown_status_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown status 'guess'"):
        parse_geometry(document(depth={"value": 32, "status": "guess", "source": "s"}))


def test_an_unnamed_source_is_refused() -> None:
    with pytest.raises(KeyError):
        parse_geometry(document(depth={"value": 32, "status": "found", "source": "elsewhere"}))
