import pytest

from mmcalib.models.catalogue import STATUSES, Geometry, bundled_models, find_model, parse_geometry
from tests.builders import some

each_model = pytest.mark.parametrize("geometry", bundled_models(), ids=lambda g: g.id)


@each_model
def test_every_fact_has_a_source_or_says_what_it_follows_from(geometry: Geometry) -> None:
    openings = {
        "inferred": ("sibling", "fine-tune", "arithmetic", "transformers", "vLLM"),
        "transformers-default": (
            "Qwen2Config",
            "MistralConfig",
            "LlamaConfig",
            "PixtralVisionConfig",
            "Glm4vConfig",
            "Lfm2VlConfig",
            "AudioFlamingo3Config",
            "InternVLConfig",
            "Gemma3nConfig",
            "Gemma3nProcessor",
        ),
        "stand-in": ("mmcalib's choice", "vLLM"),
    }
    facts = list(geometry.facts())
    assert len(facts) > 50
    assert {fact.status for _, fact in facts} <= set(STATUSES) == {"found", *openings}
    for name, fact in facts:
        assert fact.source.startswith(openings.get(fact.status, "")), name
        assert fact.source, name


@each_model
def test_doubts_are_spoken_out(geometry: Geometry) -> None:
    said = " ".join(geometry.cannot_promise)
    assert "weights are dummy" in said
    assert "tokenizer is generated" in said
    if any(fact.status == "transformers-default" for _, fact in geometry.facts()):
        assert "class defaults" in said


@each_model
def test_a_placeholder_per_modality_where_the_model_chats(geometry: Geometry) -> None:
    chats = bool(geometry.values("chat"))
    assert set(geometry.values("placeholders")) == (set(geometry.modalities) if chats else set())
    assert chats or "no chat template" in " ".join(geometry.cannot_promise)


# Numbers that the processor's class would fill in otherwise, and wrongly.
@pytest.mark.parametrize(
    ("model_id", "section", "name", "value"),
    [
        ("gemma-3-4b-it", "preprocessor", "size", {"height": 896, "width": 896}),
        ("whisper-large-v3", "preprocessor", "feature_size", 128),
        ("whisper-large-v3", "config", "num_mel_bins", 128),
        (
            "Qwen3-VL-8B-Instruct",
            "video_preprocessor",
            "size",
            {"longest_edge": 25_165_824, "shortest_edge": 4096},
        ),
        ("llava-onevision-qwen2-7b-ov-hf", "preprocessor", "image_mean", [0.5, 0.5, 0.5]),
    ],
)
def test_what_differs_from_the_class(model_id: str, section: str, name: str, value: object) -> None:
    assert some(find_model(model_id)).values(section)[name] == value


@each_model
def test_the_config_names_the_architecture(geometry: Geometry) -> None:
    assert geometry.values("config")["architectures"] == [geometry.architecture]


@pytest.mark.parametrize(
    "spelling",
    ["Qwen/Qwen2.5-VL-3B-Instruct", "qwen/qwen2.5-vl-3b-instruct", "Qwen2.5-VL-3B-Instruct"],
)
def test_find_takes_an_id_or_its_last_part(spelling: str) -> None:
    assert some(find_model(spelling)).id == "Qwen/Qwen2.5-VL-3B-Instruct"


def document(**config: object) -> dict[str, object]:
    frame = {"id": "a/b", "architecture": "A", "modalities": [], "cannot_promise": []}
    return {**frame, "sources": {"s": "somewhere"}, "config": config}


@pytest.mark.parametrize(
    "depth",
    [
        32,
        {"value": 32, "status": "guess", "source": "s"},
        {"value": 32, "status": "found", "source": "elsewhere"},
    ],
)
def test_a_value_without_a_known_status_and_source_is_refused(depth: object) -> None:
    with pytest.raises((KeyError, ValueError)):
        parse_geometry(document(depth=depth))
