"""Items given by their size are what files of that size are."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmcalib.admission.admits import admit_file
from mmcalib.corpus.given import profile_names, read_distribution
from mmcalib.corpus.lines import parse_line
from mmcalib.corpus.requests import Reading, RequestsSource
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import (
    AudioShape,
    EncodedItem,
    Encoding,
    ImageShape,
    Shape,
    VideoShape,
    format_size,
    parse_size,
)
from mmcalib.errors import CorpusError
from mmcalib.gate.bounds import Area, Ceiling, Rule
from mmcalib.media.blank import write_blank
from mmcalib.media.probe import examine, examine_whole
from tests.report.example import calibration

# Three models: cells of 28 and of 32 pixels, and tokens that no size changes.
RULES: list[Rule] = [
    Area(28, 3136, 1_003_520, max_aspect=200),
    Area(32, 65_536, 16_777_216, max_aspect=200),
    Ceiling(2306, 2304, min_side_px=8, max_aspect=100.0),
]


def test_each_modality_has_its_notation() -> None:
    clip = VideoShape(360, 30.0, 12.0, 1920, 1080)
    assert parse_size("size:4032x3024,jpeg").shape == ImageShape(4032, 3024)
    assert parse_size("size:1920x1080,30fps,12s,h264").shape == clip
    sound = EncodedItem(AudioShape(720_000, 16_000), Encoding(channels=2, given=True))
    assert parse_size("size:16000Hz,45s,2ch#voice") == sound


sides, positive = st.integers(1, 1 << 20), st.floats(1e-3, 1e6)
encodings = st.builds(Encoding, file_mib=sides, channels=st.integers(0, 8), fetched=st.booleans())
clips = st.builds(VideoShape, sides, positive, positive, sides, sides)
shapes = clips | st.builds(ImageShape, sides, sides) | st.builds(AudioShape, sides, sides)


@given(shapes, encodings)
def test_a_size_says_all_that_a_header_says(one: Shape, encoding: Encoding) -> None:
    size = format_size(EncodedItem(one, encoding), "7")
    assert parse_size(size) == EncodedItem(one, replace(encoding, given=True))


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("64x64,4032", "cannot read '4032'"),
        ("4032x3024,30fps", "write size:4032x3024, "),
        ("64x64,h264", "h264 is no format of image"),
        ("64x64,2fps,2s,2fps", "2fps says again"),
        ("16000Hz,45s,fault=no", "cannot read 'fault=no'"),
    ],
)
def test_a_mistake_is_one_line(size: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"^not a size: ") as error:
        parse_size(f"size:{size}")
    assert why in str(error.value)


def test_a_size_is_what_the_file_of_that_size_is(tmp_path: Path) -> None:
    clips: list[Shape] = [VideoShape(5, 30.0, 5 / 30, 641, 481), VideoShape(8, 4.0, 2.0, 320, 240)]
    for number, one in enumerate([*clips, AudioShape(8_001, 16_000), AudioShape(9, 44_100)]):
        file = examine_whole(Item(str(write_blank(one, number, tmp_path))))
        assert isinstance(file, EncodedItem)
        size = examine_whole(Item(format_size(file)))
        assert size == replace(file, encoding=replace(file.encoding, given=True))


def test_check_answers_for_a_size_as_for_a_file(tmp_path: Path) -> None:
    """200 random sizes, three models."""
    numbers, known, path = random.Random(61), calibration().gate, tmp_path / "a.png"
    for _ in range(200):
        width, height = (round(2 ** numbers.uniform(0, 13)) for _ in range(2))
        Image.new("1", (width, height)).save(path, compress_level=1)
        file, size = examine_whole(Item(str(path))), examine(Item(f"size:{width}x{height}"))
        for gate in (replace(known, rules={"image": rule}) for rule in RULES):
            assert admit_file(gate, size) == admit_file(gate, file)


def drawn(name: str) -> list[dict[str, Any]]:
    found = read_distribution(Path(name))
    assert found
    return [json.loads(line) for line in found.lines()]


def test_servegen_s_profile_has_servegen_s_percentiles() -> None:
    lines = drawn("profile:servegen-image")
    assert lines == drawn("profile:servegen-image")
    images = sorted(len(line["sizes"]) for line in lines)
    assert [images[10 * p] for p in (50, 500, 900, 950, 990, 999)] == [1, 1, 3, 4, 9, 40]
    text = sorted(line["text_tokens"] for line in lines)
    assert [text[100 * p] for p in (1, 49, 74, 89)] == [41, 106, 1032, 1914]
    sides = [one.removeprefix("size:").split("x") for line in lines for one in line["sizes"]]
    tokens = [int(width) * int(height) / 28**2 for width, height in sides]
    assert tokens.count(1196) / len(tokens) == pytest.approx(0.155, abs=0.001)


def test_every_profile_can_be_drawn_and_names_its_source() -> None:
    for name in profile_names():
        assert getattr(read_distribution(Path(f"profile:{name}")), "source", "")
        for line in drawn(f"profile:{name}")[:50]:
            request, _ = parse_line(json.dumps(line).encode())
            assert [size for _, size in request.media()] == line["sizes"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("items: {1 image: 1}", "image: items and sizes must both name it, or neither"),
        ("items: {1 picture: 1}", "items: '1 picture' is not like 2 images, 1 video, or none"),
        ("items: {none: 1}\nsizes: {size:64: 1}", "not a size: cannot read '64'"),
        ("items: {none: 1}\nrepeat: 0.5", "repeat: Unexpected keyword argument"),
    ],
)
def test_a_mistake_in_a_distribution_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "users.yaml").write_text(text)
    with pytest.raises(CorpusError) as error:
        read_distribution(tmp_path / "users.yaml")
    assert str(error.value).startswith(f"{tmp_path}/users.yaml: {why}")


def test_repeats_are_items_of_earlier_requests(tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    path.write_text("items: {1 image: 1}\nsizes: {size:64x64: 1}\nrepeats: 0.25\nrequests: 4000")
    sizes = [line["sizes"][0] for line in drawn(str(path))]
    assert len(set(sizes)) / len(sizes) == pytest.approx(0.75, abs=0.03)


def test_texts_of_a_given_length_differ_and_have_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"sizes": [], "text_tokens": 900, "count": 500}')
    source = RequestsSource(tmp_path / "a.jsonl", Reading(tmp_path))
    first, again = ([one.request.text() for one in source.texts()] for _ in range(2))
    assert first == again
    # A block of vLLM's prefix cache has 16 tokens.
    assert len({text[:8] for text in first}) == len(first) == 500
    tekken = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    file = Path(tekken.__file__).parents[2] / "data" / "tekken_240911.json"
    tokenizer = tekken.Tekkenizer.from_file(file)
    assert {len(tokenizer.encode(text, False, False)) for text in first[:20]} == {900}
