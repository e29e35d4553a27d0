from __future__ import annotations

from mmcalib.report import throughput_words as said
from mmcalib.result.throughput import Rates, Throughput
from tests.report.example import calibration


def example() -> Throughput:
    found = calibration().throughput
    assert found is not None
    return found


def on_gpu() -> Throughput:
    """The example as if its encoder had been swept whole on a GPU."""
    found = example()
    rates = {"items_per_s": 120.0, "cores": 4.16}
    return found.model_copy(
        update={
            "device": "cuda",
            "depth": 32,
            "modalities": {m: r.model_copy(update=rates) for m, r in found.modalities.items()},
            "mix": found.mix.model_copy(update=rates) if found.mix else None,
        }
    )


def test_a_cpu_sweep_promises_no_rate_and_says_what_would() -> None:
    assert "items/s of one GPU, at most" not in said.head(example())
    notes = " ".join(said.notes(example()))
    assert "of cpu, 2 of 32 encoder layers, and say nothing of a GPU" in notes
    assert "--encoder-sweep on the GPU" in notes
    assert "GPU" not in said.line(example())


def test_a_gpu_s_rate_is_the_most_of_the_encoder_alone() -> None:
    found = on_gpu()
    assert "items/s of one GPU, at most" in said.head(found)
    assert "the language model is not in them" in " ".join(said.notes(found))
    assert said.line(found).endswith("one GPU's encoder at most 120 items/s, 4.2 cores [computed]")


def test_every_row_has_a_cell_under_each_head() -> None:
    bare = example().model_copy(update={"device": None})
    for found in (example(), on_gpu(), bare):
        rows = list(said.rows(found))
        assert [row[0] for row in rows] == ["image", "video", "as in the corpus"]
        assert {len(row) for row in rows} == {len(said.head(found))}


def test_a_modality_that_was_not_swept_is_named() -> None:
    found = example()
    video = found.modalities["video"].model_copy(update={"encoder_s": None})
    missing = found.model_copy(update={"modalities": {**found.modalities, "video": video}})
    assert "The encoder was not swept with video" in list(said.notes(missing))


def test_of_one_modality_its_own_rates_are_the_whole() -> None:
    found = example()
    image = found.model_copy(update={"modalities": {"image": found.modalities["image"]}})
    one = image.model_copy(update={"mix": None})
    assert "3.1 cores for 100 items/s" in said.line(one)
    assert len(list(said.rows(one))) == 1
    assert isinstance(found.mix, Rates)
    assert "4.8 cores for 100 items/s" in said.line(found)
