"""Media as programs hold them, and URLs."""

import base64
import json
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmcalib.admission.admits import admit_item
from mmcalib.corpus.grammar import Grammar
from mmcalib.domain.model import Server
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.gate.admission import Admission
from mmcalib.gate.bounds import Ladder, Rung
from mmcalib.storage.location import allow_hosts
from tests.corpus.media import asking, png
from tests.corpus.serving import serving
from tests.odd_media import frames_url, meeting, silence
from tests.programs import run_python
from tests.report.example import calibration
from tests.report.test_presented import GATE, PAGE

PAGE_TOKENS = 300


def test_neither_torch_nor_numpy_is_loaded_to_tell() -> None:
    code = (
        "import sys\n"
        "from mmcalib.admission import admits, datasets\n"
        "print([m for m in ('torch', 'numpy', 'datasets', 'ray') if m in sys.modules])"
    )
    assert run_python("-c", code, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (ImageShape(0, 5), "width_px of 0: sizes are numbers above 0"),
        (ImageShape(5, -1), "height_px of -1: "),
        (ImageShape("a", 5), "width_px of 'a': "),  # type: ignore[arg-type]
        (ImageShape(None, 5), "width_px of None: "),  # type: ignore[arg-type]
        (ImageShape([5], 5), "width_px of [5]: "),  # type: ignore[arg-type]
        (VideoShape(10, float("nan"), 1.0, 64, 64), "fps of nan: "),
        (VideoShape(10, 10.0, float("inf"), 64, 64), "duration_s of inf: "),
        (AudioShape(16_000, 0), "sample_rate_hz of 0: "),
        (Image.new("L", (0, 5)), "width_px of 0: "),
    ],
)
def test_a_shape_that_nothing_has_does_not_fit(shape: Any, reason: str) -> None:
    """A table may lack a size."""
    found = admit_item(GATE, shape)
    assert found.answer == "no"
    assert found.reason.startswith(reason)


def test_urls(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(png(*PAGE))
    assert admit_item(GATE, (tmp_path / "a b.png").as_uri()).tokens == PAGE_TOKENS
    assert admit_item(GATE, frames_url(6)).fits
    with serving() as server:
        url = server.put("a.png", png(*PAGE))
        away = admit_item(GATE, url)
        assert (away.answer, away.reason[:10]) == ("unknown", "remote URL")
        assert admit_item(GATE, asking(url)).answer == "unknown"
        assert server.asked == 0
        with allow_hosts(["127.0.0.1"]):
            assert admit_item(GATE, url).tokens == PAGE_TOKENS
            assert admit_item(GATE, asking(url)).fits
    assert admit_item(GATE, "gopher://host/a.png").reason == "URL with an unsupported scheme"


def test_a_cell_of_a_dataset_that_is_not_decoded(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(*PAGE))
    page = admit_item(GATE, ImageShape(*PAGE))
    assert admit_item(GATE, {"bytes": png(*PAGE), "path": "a.png"}) == page
    assert admit_item(GATE, {"bytes": None, "path": str(tmp_path / "a.png")}) == page


@pytest.mark.parametrize(
    "row",
    [
        *({}, {"image": "a.png"}, {"image": Image.new("RGB", PAGE), "prompt": "What?"}),
        {"image": Image.new("RGB", PAGE), **asking()},
    ],
)
def test_a_row_is_no_request(row: dict[str, Any]) -> None:
    """Its picture would go uncounted."""
    with pytest.raises(TypeError, match=r"cannot check dict of .*; mmcalib takes a path"):
        admit_item(GATE, row)


def test_an_offline_prompt_has_the_media_that_it_holds() -> None:
    """They were passed over without a word."""
    photo = Image.new("RGB", PAGE)
    row = {"prompt": "<|image_pad|>Describe", "multi_modal_data": {"image": [photo] * 60}}
    found = admit_item(GATE, row)
    assert (found.answer, found.reason[:14]) == ("no", "60 image items")
    one = admit_item(GATE, {"prompt": "a", "multi_modal_data": {"image": photo}})
    assert (one.answer, one.tokens) == ("fits", PAGE_TOKENS)


def test_what_is_not_modelled_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(*PAGE))
    asked = asking((tmp_path / "a.png").as_uri())
    grammar = Grammar({})
    assert admit_item(GATE, asked, tmp_path, None, grammar).fits
    found = admit_item(GATE, {**asked, "temperature": 1}, tmp_path, None, grammar)
    assert (found.answer, found.reason[:16]) == ("unknown", "this calibration")
    part = {"type": "image_url", "image_url": None, "uuid": "k"}
    named = {"messages": [{"role": "user", "content": [part]}]}
    assert admit_item(GATE, named, tmp_path, None, grammar).answer == "unknown"
    tools = {**asked, "tools": [{"type": "function", "function": {"name": "f"}}]}
    refused = admit_item(GATE, tools, tmp_path, None, grammar)
    assert (refused.answer, "--tool-call-parser" in refused.reason) == ("no", True)


def test_a_body_is_as_long_as_the_server_reads() -> None:
    """The vllm-rs of 0.33's wheel read 33,554,432 bytes; one more got HTTP 400, `length limit
    exceeded`. With 0, it read any number.
    """
    variable, data = "VLLM_HTTP_MAX_REQUEST_BODY_SIZE", png(*PAGE)
    asked = asking("data:image/png;base64," + base64.b64encode(data).decode())
    nbytes = len(json.dumps(asking("data:image/png;base64,"))) + 4 * -(-len(data) // 3)

    def answer(most: int | None, **wrapped: Any) -> Admission:
        server = Server(limits={} if most is None else {variable: most})
        return admit_item(replace(GATE, server=server), {**wrapped, **asked})

    assert answer(nbytes).fits
    assert answer(0).fits
    assert answer(None).fits
    long = answer(nbytes - 1)
    assert (long.answer, long.remedy) == ("no", f"{variable}={nbytes} for the server")
    assert long.reason == (
        f"a body of {nbytes:,} bytes, the server takes up to {nbytes - 1:,} ({variable})"
    )
    # The line of a batch file has more than the body.
    batch = {"custom_id": "1" * 99, "body": asked}
    fits, over = (replace(GATE, server=Server(limits={variable: nbytes - n})) for n in (0, 1))
    assert admit_item(fits, batch).fits
    assert admit_item(over, batch).remedy == long.remedy


WHOLE, LONG = GATE.max_model_len, 9 * GATE.max_model_len


@pytest.mark.parametrize(
    ("kept", "tokens", "answer"),
    [
        *((5, None, "fits"), ("5", None, "fits"), (5, LONG, "fits"), (0, None, "unknown")),
        *((WHOLE, None, "unknown"), (WHOLE, 9, "fits"), (WHOLE, LONG, "no"), (WHOLE + 1, 9, "no")),
        *((-1, LONG, "no"), (-1, 9, "fits")),
    ],
)
def test_a_text_that_is_cut_takes_no_more(tmp_path: Path, kept, tokens, answer: str) -> None:
    """Nothing bounded it; vLLM refuses to cut to more than the context."""
    body = {"messages": [{"role": "user", "content": "a"}], "truncate_prompt_tokens": kept}
    counting: Any = tokens and SimpleNamespace(tokens=lambda _, tokenise: tokenise and tokens)
    assert admit_item(GATE, body, None, counting).answer == answer
    if (kept, tokens) == (-1, LONG):
        assert admit_item(GATE, {**body, "max_tokens": 1}, None, counting).fits
    (tmp_path / "a.png").write_bytes(png(*PAGE))
    pictured = {**asking((tmp_path / "a.png").as_uri()), "truncate_prompt_tokens": 5}
    assert admit_item(GATE, pictured, tmp_path).answer == "unknown"
    nine: Any = SimpleNamespace(tokens=lambda _, tokenise: 9)
    for most, right in ((WHOLE, "fits"), (PAGE_TOKENS, "unknown")):
        longer = {**pictured, "truncate_prompt_tokens": most, "images": ["not sent"]}
        assert admit_item(GATE, longer, tmp_path, nine).answer == right


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        *(({}, "fits"), ({"a": 1}, "no"), ([{"type": "text", "text": None}], "fits")),
        *(([{"type": "text", "text": 7}], "unknown"), ([{"type": "thinking"}], "unknown")),
    ],
)
def test_what_pydantic_takes_for_a_text(content: object, answer: str) -> None:
    """A template may make of a number what it likes: without its count nothing is known."""
    for role, right in (("user", answer), ("ipython", answer if content else "no")):
        asked = {"messages": [{"role": role, "content": content}]}
        assert admit_item(GATE, asked).answer == right


def test_a_calibration_travels_to_workers() -> None:
    kept = calibration()
    assert kept.admits(Image.new("RGB", (1316, 756))).fits
    there = pickle.loads(pickle.dumps(kept))
    assert there.to_json() == kept.to_json()
    assert there.admits(ImageShape(1316, 756)).fits


LISTENING = replace(
    GATE, counts={"audio": 1}, rules={"audio": Ladder(16_000, (Rung(1, 1, 1), Rung(1 << 20, 9, 9)))}
)


def test_a_recording_with_pictures_is_sound_to_a_model_of_sound(tmp_path: Path) -> None:
    """A meeting that is sent to be transcribed was refused: "the model takes no video"."""
    path = meeting(tmp_path / "a.mp4")
    for item in (path, path.read_bytes()):
        assert admit_item(LISTENING, item).fits
    seeing = replace(LISTENING, counts={"audio": 1, "video": 0})
    assert admit_item(seeing, path).reason == "limit_mm_per_prompt admits no video"


def test_sound_as_an_array_is_held_to_its_rate_too() -> None:
    answer = admit_item(LISTENING, (np.zeros(2174), 21_739))
    assert (answer.answer, answer.remedy) == ("no", "resample to 16 kHz")


def test_a_sound_without_samples_is_left_to_the_model(tmp_path: Path) -> None:
    assert admit_item(LISTENING, silence(tmp_path / "a.wav", 0, 16_000)).answer == "unknown"


def test_what_is_inline_goes_by_its_place() -> None:
    """Its file has another name each time, and is gone before anybody reads the answer."""
    data = png(*PAGE)
    urls = [f"data:;base64,{base64.b64encode(one).decode()}" for one in (data, data[:20])]
    answer = admit_item(GATE, asking(*urls))
    assert answer.reason == "inline image (item 2): damaged: Truncated File Read"


def test_a_heic_is_to_be_converted() -> None:
    answer = admit_item(GATE, b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200))
    told = (answer.answer, answer.reason, answer.remedy)
    assert told == ("no", "vLLM does not open HEIC", "convert it to JPEG")
