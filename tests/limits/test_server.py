"""Files that a server refuses by its own limits."""

from dataclasses import replace

import pytest

from mmcalib.domain.items import RequestText
from mmcalib.domain.model import MAX_PIXELS, Server
from mmcalib.domain.shapes import (
    PLAIN,
    AudioShape,
    EncodedItem,
    Encoding,
    Fault,
    ImageShape,
    Shape,
    VideoShape,
)
from mmcalib.gate.admission import (
    AudioLimits,
    ShapeCost,
    admit,
    admit_prompt,
    admitting_variables,
    find_server_refusal,
)
from mmcalib.gate.bounds import Ladder, Rung, Sampling, ServerRefusal
from mmcalib.gate.item_remedies import add_prompt_remedy, add_remedy
from mmcalib.releases.constants import CRASHING_AUDIO_SAMPLES
from tests import builders
from tests.builders import AREA, some

SERVER = Server(
    limits={
        "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": 25,
        "VLLM_MAX_AUDIO_DECODE_DURATION_S": 600,
        "VLLM_MAX_AUDIO_DECODE_BYTES": 268_435_456,
        "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": 256,
    },
    decodes={"h264": True, "av1": False},
    lone_frames=False,
)
MINUTE = AudioShape(60 * 16_000, 16_000)
LONG = AudioShape(900 * 16_000, 16_000)
CLIP = VideoShape(100, 25.0, 4.0, 640, 360)
GATE = replace(builders.GATE, server=SERVER)


@pytest.mark.parametrize(
    ("shape", "encoding", "reason"),
    [
        (MINUTE, Encoding(file_mib=26), "a file of 26 MiB, the server takes up to 25 MiB"),
        (LONG, PLAIN, "900.0 s, the server takes up to 600 s"),
        (MINUTE, Encoding(channels=80), "80 channels of 60.0 s, 293 MiB decoded"),
        (ImageShape(9, 9), Encoding(file_mib=300, fetched=True), "a download of 300 MiB"),
        (CLIP, Encoding(codec="av1"), "av1: the server cannot decode"),
        (CLIP, Encoding(codec="h264", lone_frame=True), "a clip of one frame"),
    ],
)
def test_what_the_server_refuses_does_not_fit(shape: Shape, encoding, reason: str) -> None:
    file = EncodedItem(shape, encoding)
    said = some(find_server_refusal(file, SERVER))
    assert said.reason.startswith(reason)
    answer = add_remedy(GATE, file, admit(GATE, file))
    assert (answer.answer, answer.reason) == ("no", said.reason)
    assert answer.remedy.startswith(said.remedy)
    assert admit_prompt(GATE, [file], RequestText()).answer == "no"


@pytest.mark.parametrize(
    "file",
    [
        EncodedItem(MINUTE, Encoding(file_mib=25, channels=2)),
        EncodedItem(AudioShape(600 * 16_000, 16_000), Encoding(channels=1)),
        EncodedItem(ImageShape(9, 9), Encoding(file_mib=300)),
        EncodedItem(CLIP, Encoding(codec="h264")),
        EncodedItem(CLIP, Encoding(codec="never-tried")),
        EncodedItem(CLIP, PLAIN),
    ],
)
def test_what_it_takes_is_left_to_the_shape(file: EncodedItem) -> None:
    assert find_server_refusal(file, SERVER) is None


def test_packed_sound_costs_once_per_channel() -> None:
    """Two seconds of 5.1 PCM in MP4 took 300 tokens, 50 as planar sound (vLLM 0.32)."""
    rungs = tuple(Rung(16_000 * n, 25 * n, 25 * n) for n in range(1, 20))
    gate = replace(GATE, rules={"audio": Ladder(16_000, rungs)}, known_costs={})
    clip = AudioShape(96_000, 48_000)
    packed = EncodedItem(clip, Encoding(channels=6, sample_format="s16"))
    assert admit(gate, packed).tokens == 325
    assert admit(gate, EncodedItem(clip, Encoding(channels=6, sample_format="s16p"))).tokens == 75
    assert admit(replace(gate, server=Server(torchcodec=True)), packed).tokens == 75


def test_a_known_shape_says_nothing_of_frames_that_the_loader_takes_otherwise() -> None:
    """A live Matroska file of a known shape was let in; the server answered 500 (vLLM 0.32)."""
    gate = replace(GATE, rules={}, known_costs={CLIP: ShapeCost(280, 280, "real")})
    assert admit(gate, CLIP).answer == "fits"
    for odd in (Encoding(unpromised=True), Encoding(sent_frames=True), Encoding(promised_frames=9)):
        assert admit(gate, EncodedItem(CLIP, odd)).answer == "unknown"


SMALL = Server(limits={"VLLM_MAX_IMAGE_PIXELS": 1_000_000})
# Each model takes any of it: what refuses it is the server.
ANY = replace(GATE, rules={"image": AREA, "video": GATE.rules["video"]}, budget_tokens=1 << 20)


def test_a_picture_of_too_many_pixels_is_refused_as_a_shape_too() -> None:
    gate = replace(ANY, server=SMALL)
    answer = add_remedy(gate, ImageShape(2000, 1000), admit(gate, ImageShape(2000, 1000)))
    assert (answer.answer, answer.basis) == ("no", "refused")
    assert answer.reason == (
        "an image of 2,000,000 pixels, the server takes up to 1,000,000 (VLLM_MAX_IMAGE_PIXELS)"
    )
    words = "VLLM_MAX_IMAGE_PIXELS=2000000 for the server or resize to "
    assert answer.remedy.startswith(words)
    assert isinstance(answer.largest, ImageShape)
    assert 0 < answer.largest.width_px * answer.largest.height_px <= 1_000_000
    assert admit(gate, ImageShape(1000, 1000)).fits


@pytest.mark.parametrize("most", [None, 0, 1 << 40])
def test_no_variable_makes_pillow_open_more_than_it_does(most: int | None) -> None:
    """vLLM opens pictures by Pillow, whose own bound no variable of vLLM moves."""
    server = Server(limits={} if most is None else {"VLLM_MAX_IMAGE_PIXELS": most})
    gate, huge = replace(ANY, server=server), ImageShape(100_000, 100_000)
    answer = add_remedy(gate, huge, admit(gate, huge))
    assert (answer.answer, admitting_variables(EncodedItem(huge), server)) == ("no", {})
    assert f"{MAX_PIXELS:,}" in answer.reason
    assert answer.remedy.startswith("resize to ")
    unknown = replace(gate, rules={})
    assert add_remedy(unknown, huge, admit(unknown, huge)).remedy == "exclude it"
    sent = EncodedItem(replace(CLIP, width_px=100_000, height_px=2000), Encoding(sent_frames=True))
    assert find_server_refusal(sent, server) is not None


def test_frames_are_held_against_the_variable_alone() -> None:
    wide = EncodedItem(replace(CLIP, width_px=20_000, height_px=10_000))
    for server in (SMALL, Server()):
        said = some(find_server_refusal(wide, server))
        assert said.remedy == "VLLM_MAX_IMAGE_PIXELS=200000000 for the server"
    for most in (0, 200_000_000):
        assert find_server_refusal(wide, Server(limits={"VLLM_MAX_IMAGE_PIXELS": most})) is None


def test_all_that_is_needed_is_named_at_once() -> None:
    """A file that is both too large and too long."""
    file = EncodedItem(LONG, Encoding(file_mib=41, channels=1))
    found = admitting_variables(file, SERVER)
    assert found == {"VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": 41, "VLLM_MAX_AUDIO_DECODE_DURATION_S": 900}
    assert find_server_refusal(file, replace(SERVER, limits={**SERVER.limits, **found})) is None
    assert admitting_variables(EncodedItem(CLIP, Encoding(codec="av1")), SERVER) == {}


def test_packed_samples_count_once_per_channel() -> None:
    stereo = EncodedItem(AudioShape(310 * 8_000, 8_000), Encoding(channels=2, sample_format="s16"))
    assert find_server_refusal(stereo, SERVER) is not None
    planar = replace(stereo, encoding=Encoding(channels=2, sample_format="fltp"))
    assert find_server_refusal(planar, SERVER) is None
    assert find_server_refusal(stereo, replace(SERVER, torchcodec=True)) is None


def test_frames_that_are_not_there_cost_nothing() -> None:
    """A clip of variable rate has fewer frames than its rate says."""
    rule = GATE.rules["video"]
    clip = replace(CLIP, num_frames=60, fps=30.0)
    sparse = EncodedItem(clip, Encoding(promised_frames=1742))
    assert list(Sampling("qwen2_vl", 32, 2).possible_frames(clip, sparse.encoding)) == [4, 5]
    assert isinstance(rule.bound(CLIP, Encoding(unpromised=True)), ServerRefusal)
    assert admit(GATE, sparse).fits


def test_frames_that_a_client_sends_are_cut_to_what_the_server_takes() -> None:
    """The server takes as many as `num_frames`, whatever the loader."""
    sent = Encoding(sent_frames=True)
    many = replace(CLIP, num_frames=700, fps=1.0)
    assert list(Sampling("qwen3_vl", 32, 2).possible_frames(many, sent)) == [32]
    assert list(Sampling("qwen3_vl", -1, 2).possible_frames(many, sent)) == [700]


def test_what_a_request_has_decoded_is_bounded_together() -> None:
    """Releases from 0.33 on have this limit."""
    server = Server(limits={"VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES": 715_827_880})
    roomy = replace(ANY, counts={"image": 9, "video": 9}, max_model_len=1 << 20)
    gate = replace(roomy, server=server)
    photo = ImageShape(8_200, 5_500)
    assert admit_prompt(gate, [photo] * 3, RequestText()).fits
    answer = admit_prompt(gate, [photo] * 4, RequestText())
    assert (answer.answer, answer.basis) == ("no", "formula")
    assert answer.reason.endswith("up to 683 MiB (VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES)")
    told = add_prompt_remedy(gate, [photo] * 4, RequestText(), answer).remedy
    assert told.startswith("VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES=721600000 for the server")
    assert "split into 2 prompts" in told
    film = VideoShape(6_000, 25.0, 240.0, 1920, 1080)
    assert admit(gate, film).reason.startswith("2848 MiB of decoded media")
    assert admit(replace(gate, server=Server()), film).fits


DOWNLOADS = "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB"


@pytest.mark.parametrize(
    ("sizes_mib", "limits", "answer", "remedy"),
    [
        # `MediaRequestDownloadBudget.charge` compares the sum with `>` (vllm/connections.py:76 of
        # 0.33), and 0 is no limit. Sizes are rounded up: 129 + 128 may be just above 256.
        ([128, 128], {DOWNLOADS: 256}, "fits", ""),
        ([129, 128], {DOWNLOADS: 256}, "unknown", f"{DOWNLOADS}=257 for the server"),
        ([129, 129], {DOWNLOADS: 256}, "no", f"{DOWNLOADS}=258 for the server"),
        ([200, 200], {DOWNLOADS: 400}, "fits", ""),
        ([200, 200], {DOWNLOADS: 0}, "fits", ""),
        # A release below 0.33 has no such limit.
        ([200, 200], {"VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": 256}, "fits", ""),
        # One file counts for both.
        (
            [300],
            {"VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": 400, DOWNLOADS: 256},
            "no",
            f"{DOWNLOADS}=300 for the server",
        ),
    ],
)
def test_downloads_of_a_request_are_bounded_together(sizes_mib, limits, answer, remedy) -> None:
    gate = replace(GATE, server=Server(limits=limits), rules={**GATE.rules, "image": AREA})
    photo = ImageShape(280, 280)
    sent = [EncodedItem(photo, Encoding(file_mib=mib, fetched=True)) for mib in sizes_mib]
    found = admit_prompt(gate, sent, RequestText())
    told = add_prompt_remedy(gate, sent, RequestText(), found).remedy
    assert (found.answer, told.partition(" or ")[0]) == (answer, remedy)
    inline = [replace(one, encoding=replace(one.encoding, fetched=False)) for one in sent]
    assert admit_prompt(gate, inline, RequestText()).fits
    assert admitting_variables(sent[0], gate.server) == ({DOWNLOADS: 300} if sent[1:] == [] else {})


@pytest.mark.parametrize(
    ("encoding", "said", "remedy"),
    [
        # OpenCV decodes none of its frames, or loses some.
        (Encoding(codec="h264", transport_stream=True), "unknown", "remux it to MP4"),
        # It has no length.
        (Encoding(codec="h264", unpromised=True), "no", "remux it: ffmpeg -i IN -c copy OUT"),
    ],
    ids=["transport-stream", "no-length"],
)
def test_a_clip_that_promises_nothing_is_to_be_remuxed(encoding, said: str, remedy: str) -> None:
    file = EncodedItem(CLIP, encoding)
    answer = add_remedy(GATE, file, admit(GATE, file))
    assert (answer.answer, answer.remedy.partition(" or ")[0]) == (said, remedy)


@pytest.mark.parametrize("rate_hz", [11_127, 16_001, 21_739, 22_222, 44_247])
def test_a_rate_whose_resampling_takes_gigabytes_does_not_fit(rate_hz: int) -> None:
    """4 KB of sound took the server down."""
    shape = AudioShape(rate_hz // 10, rate_hz)
    answer = add_remedy(GATE, shape, admit(GATE, shape))
    assert answer.answer == "no"
    assert answer.remedy == "resample to 16 kHz"
    assert admit(replace(GATE, audio_limits=AudioLimits(None)), shape).fits


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 12_345, 16_000, 22_050, 22_255, 44_100, 48_000])
def test_usual_rates_are_resampled(rate_hz: int) -> None:
    assert admit(GATE, AudioShape(rate_hz, rate_hz)).fits


def test_one_frame_of_sound_ends_the_engine_of_gemma_4() -> None:
    crashing = CRASHING_AUDIO_SAMPLES["Gemma4ForConditionalGeneration"]
    gemma = replace(GATE, audio_limits=AudioLimits(16_000, crashing))
    answers = {n: admit(gemma, AudioShape(n, 16_000)).answer for n in (320, 321, 161, 1600)}
    assert answers == {320: "no", 321: "fits", 161: "no", 1600: "fits"}
    assert admit(gemma, AudioShape(882, 44_100)).answer == "no"
    assert admit(GATE, AudioShape(320, 16_000)).fits


def believed(claimed: int, sample_format: str = "") -> EncodedItem:
    held = Encoding(channels=1, sample_format=sample_format, claimed_samples=claimed)
    return EncodedItem(MINUTE, held)


def test_limits_hold_the_length_that_the_loader_believes() -> None:
    """ADTS and MP3 without a length: vLLM refuses them by what a header or a bit rate promises."""
    for form in ("", "fltp"):
        answer = admit(GATE, believed(700 * 16_000, form))
        assert answer.reason.startswith("700.0 s by its header or bit rate, actually 60.0 s")
        assert admit(GATE, believed(90 * 16_000, form)).fits
    torchcodec = replace(GATE, server=replace(SERVER, torchcodec=True))
    assert admit(torchcodec, believed(700 * 16_000)).fits


def test_a_flac_of_open_length_is_to_be_written_anew() -> None:
    """No value of the server's environment lets it in."""
    file = believed(2**63 - 1)
    answer = add_remedy(GATE, file, admit(GATE, file))
    assert answer.answer == "no"
    assert answer.remedy == "rewrite the file with the length in its header"
    assert admitting_variables(file, SERVER) == {}
    assert admit(replace(GATE, server=replace(SERVER, torchcodec=True)), file).fits


@pytest.mark.parametrize("fault", ["unseekable", "unreadable", "cut_short"])
def test_sound_that_libsndfile_stumbles_on_is_refused(fault: Fault) -> None:
    file = EncodedItem(MINUTE, Encoding(channels=1, fault=fault))
    assert admit(GATE, file).answer == "no"
    assert admit(replace(GATE, server=replace(SERVER, torchcodec=True)), file).answer != "no"
