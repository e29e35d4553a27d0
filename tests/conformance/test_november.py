"""Requests, files, commands and logs as public threads have them, each with its right value."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmcalib.admission.calibration import Calibration
from mmcalib.admission.check import check
from mmcalib.configs.commands import split_model
from mmcalib.configs.opening import rejected_flags_error
from mmcalib.configs.read import extract_serve_flags, read_configuration
from mmcalib.corpus.chat import Prompt
from mmcalib.corpus.requests import Reading, RequestsSource
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import AudioShape, EncodedItem, ImageShape, VideoShape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import FindGrammar, ListServeOptions
from mmcalib.errors import UsageError, VllmRefused
from mmcalib.gate.admission import Admission
from mmcalib.media.decode import decode_check
from mmcalib.media.probe import examine_sound, examine_whole
from mmcalib.models.gpus import resolve_gpu
from mmcalib.results.check import CheckedItem
from tests.engine.conftest import QWEN, Lab, folder_of
from tests.schemas import CALIBRATION, ROOT

RECIPES = ROOT / "docs" / "how-to" / "ci-and-pipelines.md"
# Of Qwen2.5-VL over the sample: four pictures, one clip, an encoder cache of 16,384 tokens.
WHISPER_TOKENS = 1500


@dataclass
class Case:
    """The folder of a case, one to write to, and vLLM where the case needs it."""

    folder: Path
    scratch: Path
    request: pytest.FixtureRequest

    @property
    def host(self) -> EngineHost:
        host: EngineHost = self.request.getfixturevalue("host")
        return host

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def prompts(self, name: str) -> list[Prompt]:
        source = RequestsSource(self.folder / name, Reading(self.scratch))
        return [prompt for prompt in source.prompts() if isinstance(prompt, Prompt)]


def whisper() -> Calibration:
    document = json.loads(CALIBRATION.read_text())
    sound = {"known": [], "refused": [], "rule": _RULE}
    document["costs"] |= {"modalities": {"audio": sound}, "encoder_decoder": True, "counted": []}
    limits = {"limit_mm_per_prompt": {"audio": 1}, "max_model_len": 448}
    document["engine_config"] = {"model": "openai/whisper-large-v3", **limits}
    document["budget"]["calibrated"]["encoder_budget_tokens"] = WHISPER_TOKENS
    document["model"]["architecture"] = "WhisperForConditionalGeneration"
    return Calibration.model_validate(document)


# Half a minute each, padded.
_HEARD = {"samples": 480_000, "tokens": WHISPER_TOKENS, "embeds": WHISPER_TOKENS}
_RULE = {"rungs": [_HEARD | {"samples": 160}, _HEARD], "rate_hz": 16_000}


def answers(calibration: Calibration, requests: Path) -> dict[str, str]:
    """The verdict of each line by its `custom_id`."""
    names = [json.loads(line)["custom_id"] for line in requests.read_text().splitlines()]
    found = check(calibration, requests=[requests])
    said = [one.admission.answer for one in found if isinstance(one, CheckedItem)]
    return dict(zip(names, said, strict=True))


def admitted(calibration: Calibration, path: str) -> Admission:
    (found,) = check(calibration, [path])
    assert isinstance(found, CheckedItem)
    return found.admission


def voice_message(case: Case) -> object:
    item = Item(case.file("voice_20s.amr"))
    seen = examine_whole(item)
    assert isinstance(seen, EncodedItem)
    return seen.shape, seen.encoding.fault, decode_check(item, "audio")


def parts(case: Case) -> object:
    model = Lab(case.host, folder_of(QWEN, case.scratch))
    document = Calibration.load(CALIBRATION)
    grammar = model.host.ask(FindGrammar(("image", "video")), "asking").grammar
    costs = document.costs.model_copy(update={"grammar": grammar})
    calibration = document.model_copy(update={"costs": costs})
    return answers(calibration, case.folder / "parts.jsonl")


def data_urls(case: Case) -> object:
    return answers(Calibration.load(CALIBRATION), case.folder / "dataurls.jsonl")


def open_flac(case: Case) -> object:
    admission = admitted(whisper(), case.file("streamed.flac"))
    return admission.answer, "its header has no length" in admission.reason, admission.remedy


def eaten(case: Case) -> object:
    """Return the proposal for each command."""
    options = case.host.ask(ListServeOptions(), "listing").arguments
    proposed = []
    for command in (
        "--mm_processor_kwargs {max_pixels:1000000}",
        "--rope-scaling {rope_type:yarn,factor:3.0,original_max_position_embeddings:32768}",
        "--limit-mm-per-prompt image=2 video=0",
    ):
        words = ["vllm", "serve", "Qwen/Qwen2.5-VL-7B-Instruct", *command.split()]
        written = read_configuration(None, words)
        with pytest.raises(VllmRefused) as caught:
            case.host.ask(written.parse_request, "reading")
        error = rejected_flags_error(caught.value.refusal, written.flags, options)
        proposed.append(error and error.hint)
    return proposed


def words_that_help(case: Case) -> object:
    document = Calibration.load(CALIBRATION)
    heic, tga = (admitted(document, case.file(name)) for name in ("photo.heic", "scan.tga"))
    with pytest.raises(UsageError, match="not an NVIDIA GPU") as caught:
        resolve_gpu("Radeon AI PRO R9700")
    named = "--capability" in caught.value.hint
    return (heic.answer, heic.remedy), (tga.answer, tga.tokens), named


def meeting(case: Case) -> object:
    path = case.file("meeting.mp4")
    seen = examine_sound(Item(path))
    assert isinstance(seen, EncodedItem)
    assert isinstance(seen.shape, AudioShape)
    admission = admitted(whisper(), path)
    return round(seen.shape.duration_s, 1), admission.answer, admission.tokens


def trimmed(case: Case) -> object:
    path = case.file("trimmed.mp4")
    seen = examine_whole(Item(path))
    assert isinstance(seen, EncodedItem)
    assert isinstance(seen.shape, VideoShape)
    return seen.shape.num_frames, admitted(Calibration.load(CALIBRATION), path).answer


def offline(case: Case) -> object:
    row = {
        "prompt": "<|vision_start|><|image_pad|><|vision_end|>Describe",
        "multi_modal_data": {"image": [Image.new("RGB", (4000, 3000))] * 6},
    }
    admission = Calibration.load(CALIBRATION).admits(row)
    return admission.answer, admission.tokens, admission.reason


def pasted(case: Case) -> object:
    """The model and the flags of each command."""
    server = "-m vllm.entrypoints.openai.api_server --model Qwen/Qwen2.5-VL-7B-Instruct"
    commands = (
        f"python {server} --max-model-len 8k",
        f"python3 {server}",
        "CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen2.5-VL-7B-Instruct",
        "vllm serve Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 8",
    )
    return [split_model(None, extract_serve_flags(command.split())) for command in commands]


def responses(case: Case) -> object:
    prompts = case.prompts("responses.jsonl")
    sizes = [[shape_of(item) for item in prompt.items] for prompt in prompts]
    texts = RequestsSource(case.folder / "responses.jsonl", Reading(case.scratch)).texts()
    times = [datetime.fromtimestamp(text.sent_s or 0, UTC).isoformat() for text in texts]
    return sizes, [prompt.request.answer_tokens for prompt in prompts], times


def shape_of(item: Item) -> str:
    seen = examine_whole(item)
    assert isinstance(seen, EncodedItem)
    assert isinstance(seen.shape, ImageShape)
    return f"{seen.shape.width_px}x{seen.shape.height_px}"


def exports(case: Case) -> object:
    """By the recipes of docs/how-to/ci-and-pipelines.md."""
    if shutil.which("jq") is None:
        pytest.skip("needs jq")
    sizes = []
    for mark, name in (("spans.jsonl", "otel.jsonl"), ("chats.json", "openwebui.json")):
        page = RECIPES.read_text(encoding="utf-8")
        recipe = re.search(rf"^(jq .*) {re.escape(mark)} > requests.jsonl$", page, re.MULTILINE)
        assert recipe
        out = case.scratch / "requests.jsonl"
        command = f"{recipe[1]} '{case.folder / name}' > '{out}'"
        subprocess.run(["bash", "-c", command], check=True)
        found = replace(case, folder=case.scratch).prompts(out.name)
        sizes.append([[shape_of(item) for item in prompt.items] for prompt in found])
    return sizes


def rows(case: Case) -> object:
    prompts = case.prompts("rows.jsonl")
    names = [[Path(item.path).name for item in prompt.items] for prompt in prompts]
    return names, [prompt.request.text() for prompt in prompts]


def browser_clip(case: Case) -> object:
    admission = admitted(Calibration.load(CALIBRATION), case.file("screenrec_live.webm"))
    return admission.answer, admission.reason.partition(",")[0], admission.remedy


_FITS = ("data:image;base64", "nomime", "charset", "nopad", "wrongmime")
_PRESIGNED = {"httpspresigned": "unknown"}
_REFUSED = (
    *("newlines", "urlsafe", "barebase64", "svg", "pdf", "space", "upper", "plain", "empty"),
)
NEEDS_VLLM = (pytest.mark.engine,)
Row = tuple[Callable[[Case], object], object, tuple[Any, ...]]
CASES: dict[str, Row] = {
    "amr-voice-messages": (voice_message, (AudioShape(160_160, 8000), "", None), ()),
    "content-parts-vllm-takes": (
        parts,
        {
            **dict.fromkeys(("input_image_detail", "untyped_string", "detail_low"), "fits"),
            **dict.fromkeys(("cache_control", "input_text", "name_dev"), "fits"),
            **dict.fromkeys(("typed_string", "file_part", "image_list_as_video"), "no"),
            "uuid_only": "unknown",
        },
        NEEDS_VLLM,
    ),
    "data-urls": (
        data_urls,
        dict.fromkeys(_FITS, "fits") | dict.fromkeys(_REFUSED, "no") | _PRESIGNED,
        (),
    ),
    "flac-of-open-length": (
        open_flac,
        ("no", True, "rewrite the file with the length in its header"),
        (),
    ),
    "flags-eaten-by-a-shell": (
        eaten,
        [
            """--mm-processor-kwargs '{"max_pixels": 1000000}'""",
            """--hf-overrides '{"rope_parameters": {...}}' for --rope-scaling""",
            """--limit-mm-per-prompt '{"image": 2, "video": 0}'""",
        ],
        NEEDS_VLLM,
    ),
    "heic-amd-and-quantization-words": (
        words_that_help,
        (("no", "convert it to JPEG"), ("fits", 391), False),
        (),
    ),
    "meeting-recording-as-sound": (meeting, (20.0, "fits", WHISPER_TOKENS), ()),
    "mp4-trimmed-by-edit-list": (trimmed, (242, "fits"), ()),
    "offline-multi-modal-data": (
        offline,
        ("no", 91_806, "6 image items, limit_mm_per_prompt admits 4"),
        (),
    ),
    "pasted-launch-commands": (
        pasted,
        [
            ("Qwen/Qwen2.5-VL-7B-Instruct", flags)
            for flags in (("--max-model-len", "8k"), (), (), ("--max-num-seqs", "8"))
        ],
        (),
    ),
    "responses-api-log": (
        responses,
        (
            [["1240x1754"], ["800x600", "640x480", "900x900"]],
            [300, 500],
            ["2026-09-01T10:00:00+00:00", "2026-09-01T10:00:09+00:00"],
        ),
        (),
    ),
    "traces-and-chat-exports": (
        exports,
        [[["800x600"]], [["1024x1024"], ["1024x1024", "512x512"]]],
        (),
    ),
    "training-rows-images-column": (
        rows,
        (
            [["a.png", "b.png"], ["a.png"]],
            ["What differs?\nThe left one.", "Read it.\nok"],
        ),
        (),
    ),
    "webm-of-mediarecorder": (
        browser_clip,
        ("no", "its header has no length", "remux it: ffmpeg -i IN -c copy OUT"),
        (),
    ),
}


@pytest.fixture
def cases(shared: Path) -> Path:
    folder = shared / "cases" / "november"
    if not folder.is_dir():
        pytest.skip(f"no cases at {folder}")
    return folder


def rows_of_the_table() -> Iterator[Any]:
    for name, (find, right, marks) in CASES.items():
        yield pytest.param(name, find, right, id=name, marks=marks)


@pytest.mark.parametrize(("name", "find", "right"), rows_of_the_table())
def test_a_public_case_has_its_right_value(
    request: pytest.FixtureRequest,
    cases: Path,
    tmp_path: Path,
    name: str,
    find: Callable[[Case], object],
    right: object,
) -> None:
    assert find(Case(cases / name, tmp_path, request)) == right
