"""Verdicts on media from headers alone, against vLLM's own loaders."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.corpus.requests import Reading, RequestLines
from mmcalib.domain.items import Item
from mmcalib.domain.knobs import Setting
from mmcalib.domain.model import VARIABLES, Cost
from mmcalib.domain.shapes import AudioShape, EncodedItem, ImageShape, Modality, VideoShape
from mmcalib.engine.messages import Blank, File
from mmcalib.gate.admission import Gate, admit, count_packed_samples, find_server_refusal
from mmcalib.gate.bounds import Ladder, Loader, Rule, Rung, Sampling
from mmcalib.media.probe import examine
from mmcalib.releases.platform import read_variables
from mmcalib.releases.release import VLLM_0_29, VLLM_0_32, VLLM_0_33
from tests import odd_media
from tests.builders import expect, some
from tests.engine.conftest import QWEN, Lab
from tests.upstream import before, since

pytestmark = pytest.mark.engine
QWEN_AUDIO = "Qwen/Qwen2-Audio-7B-Instruct"
REFUSED, TAKEN = True, False


def seen(path: Path, modality: Modality) -> EncodedItem:
    return expect(EncodedItem, examine(Item(str(path), modality)))


@pytest.mark.slow
def test_what_tries_codecs_leaves_the_child_its_priority(lab: Callable[[str], Lab]) -> None:
    """SVT-AV1 gives root's thread a real-time priority for good, which starved the machine."""
    opened = lab(QWEN)
    assert opened.opened.server.decodes
    assert os.sched_getscheduler(opened.host.pid) == os.sched_getscheduler(0)


def uniform(num_frames: int = 32) -> Setting:
    """The loader of models that have none of their own."""
    return Setting(media_io_kwargs={"video": {"video_backend": "opencv", "num_frames": num_frames}})


def rare(form: str, subtype: str) -> Callable[[Path], Path]:
    return lambda folder: odd_media.odd_sound(folder / f"a.{form}", subtype)


SOUNDS: dict[str, tuple[Callable[[Path], Path], bool]] = {
    "more than 25 MiB": (lambda f: odd_media.silence(f / "a.wav", 290, 48_000), REFUSED),
    "25 MiB": (lambda f: odd_media.silence(f / "a.wav", 272, 48_000), TAKEN),
    "more than 600 s": (lambda f: odd_media.silence(f / "a.flac", 601, 8_000), REFUSED),
    "600 s": (lambda f: odd_media.silence(f / "a.flac", 600, 8_000), TAKEN),
    "eight channels": (lambda f: odd_media.silence(f / "a.flac", 190, 48_000, 8), REFUSED),
    "two channels": (lambda f: odd_media.silence(f / "a.flac", 190, 48_000, 2), TAKEN),
    "packed stereo": (lambda f: odd_media.packed_sound(f / "a.mov", 310, 8_000), REFUSED),
    "less of it": (lambda f: odd_media.packed_sound(f / "a.mov", 290, 8_000), TAKEN),
    "packed mono": (lambda f: odd_media.packed_sound(f / "a.mov", 310, 8_000, 1), TAKEN),
    "Wave64": (lambda f: odd_media.silence(f / "a.w64", 2, 8_000), TAKEN),
    "AMR": (lambda f: odd_media.amr(f / "a.amr", 20.02), TAKEN),
    "open FLAC": (lambda f: odd_media.open_flac(f / "a.flac", 3), REFUSED),
    "ADTS": (lambda f: odd_media.heard(f / "a.aac", "aac", "adts", 20), TAKEN),
    "longer ADTS": (lambda f: odd_media.heard(f / "a.aac", "aac", "adts", 60), REFUSED),
    "unmeasured MP3": (lambda f: odd_media.heard(f / "a.mp3", "libmp3lame", "mp3", 20), TAKEN),
    "G.722": (lambda f: odd_media.heard(f / "a.wav", "adpcm_g722", "wav", 2), REFUSED),
    "recording": (lambda f: odd_media.meeting(f / "a.mp4"), TAKEN),
    **{
        name: (rare(form, subtype), refused)
        for name, form, subtype, refused in (
            ("GSM", "wav", "GSM610", REFUSED),
            ("G.721", "wav", "G721_32", REFUSED),
            ("NMS ADPCM", "wav", "NMS_ADPCM_16", REFUSED),
            ("DWVW", "aiff", "DWVW_16", REFUSED),
            ("XI", "xi", "DPCM_16", REFUSED),
            ("NIST", "nist", "PCM_16", TAKEN),
            ("HTK", "htk", "PCM_16", TAKEN),
        )
    },
}


_ANY_SIZE = before(VLLM_0_29, "the size of a sound file is bounded for transcriptions alone")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=_ANY_SIZE) if n == "more than 25 MiB" else n for n in SOUNDS]
)
def test_sound_that_vllm_refuses_is_known_by_its_header(lab, tmp_path: Path, name: str) -> None:
    """Limits of length, channels and formats (W64) are vLLM's."""
    make, refused = SOUNDS[name]
    path, audio = make(tmp_path), lab(QWEN_AUDIO)
    (truth,) = audio.costs(File("audio", str(path)))
    said = find_server_refusal(seen(path, "audio"), audio.opened.server)
    assert (isinstance(truth, str), said is not None) == (refused, refused), (truth, said)


@pytest.mark.parametrize(
    "make",
    [
        lambda f: odd_media.packed_sound(f / "a.mov", 2, 16_000),
        lambda f: odd_media.heard(f / "a.m4a", "aac", "ipod", 5, 8_000),
        lambda f: odd_media.heard(f / "a.mka", "libopus", "matroska", 4, 48_000),
    ],
)
def test_sound_costs_no_more_than_the_bound_of_its_header(lab, tmp_path: Path, make) -> None:
    path, audio = make(tmp_path), lab(QWEN_AUDIO)
    samples = [16_000, 48_000, 64_000, 80_000, 83_200, 96_000]
    steps = (Blank(AudioShape(n, 16_000)) for n in samples)
    truth, *blanks = audio.costs(File("audio", str(path)), *steps)
    rungs = tuple(Rung(n, b.tokens, b.embeds) for n, b in zip(samples, blanks, strict=True))
    rules: dict[Modality, Rule] = {"audio": Ladder(16_000, rungs)}
    gate = Gate(1 << 20, 1 << 20, 0, {"audio": 1}, {}, {}, rules, audio.opened.server)
    said = some(admit(gate, seen(path, "audio")).tokens)
    assert truth.tokens <= said < 2 * truth.tokens, (truth, said)


def test_packed_sound_costs_what_its_counted_samples_cost(lab, tmp_path: Path) -> None:
    path, audio = odd_media.packed_sound(tmp_path / "a.mov", 2, 16_000), lab(QWEN_AUDIO)
    counted = count_packed_samples(seen(path, "audio"), audio.opened.server)
    truth, blank, header = audio.costs(
        File("audio", str(path)), Blank(counted.shape), Blank(AudioShape(32_000, 16_000))
    )
    assert (truth.tokens, truth.embeds) == (blank.tokens, blank.embeds)
    assert truth.tokens == 2 * header.tokens


def test_no_sound_makes_the_child_take_gigabytes(lab, tmp_path: Path) -> None:
    """Neither the real file nor a stand-in does."""
    path = odd_media.silence(tmp_path / "a.wav", 0.1, 21_739)
    for subject in (File("audio", str(path)), Blank(AudioShape(2174, 21_739))):
        (truth,) = lab(QWEN_AUDIO).costs(subject)
        assert "resample to 16 kHz" in str(truth)


def test_the_values_that_are_named_admit_it(lab, tmp_path: Path) -> None:
    """vLLM's own words name the same variable."""
    path, audio = odd_media.silence(tmp_path / "a.flac", 601, 8_000), lab(QWEN_AUDIO)
    (truth,) = audio.costs(File("audio", str(path)))
    said = some(find_server_refusal(seen(path, "audio"), audio.opened.server))
    assert said.variable in str(truth)
    assert said.value == 601


def test_only_limits_of_the_installed_release_are_read() -> None:
    """The envs.py of 0.28 to 0.33 has them; the last is the Rust front end's alone."""
    read = read_variables(VARIABLES)
    assert ("VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB" in read) == VLLM_0_33.is_reached
    assert "VLLM_HTTP_MAX_REQUEST_BODY_SIZE" not in read


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1", "mpeg4", "libx265"])
def test_codecs_are_those_that_the_servers_decoder_opens(lab, tmp_path: Path, codec: str) -> None:
    """Codecs such as AV1 are tried, not written down."""
    path, qwen = odd_media.steady(tmp_path / "a.mp4", 8, codec), lab(QWEN)
    (truth,) = qwen.costs(File("video", str(path)))
    file = seen(path, "video")
    assert file.encoding.codec in qwen.opened.server.decodes
    assert isinstance(truth, str) == (find_server_refusal(file, qwen.opened.server) is not None)


def test_a_clip_of_one_frame(lab, tmp_path: Path) -> None:
    qwen = lab(QWEN)
    clips = [
        odd_media.paced(tmp_path / "a.mkv", [0]),
        odd_media.steady(tmp_path / "a.mp4", 1),
        odd_media.gif(tmp_path / "a.gif", 1),
    ]
    for path in clips:
        (truth,) = qwen.costs(File("video", str(path)), setting=uniform())
        said = find_server_refusal(seen(path, "video"), qwen.opened.server)
        assert isinstance(truth, str) == (said is not None), (path.name, truth)


CLIPS: dict[str, Callable[[Path], Path]] = {
    "one a second": lambda f: odd_media.paced(f / "a.mkv", [n * 1000 for n in range(60)]),
    "five": lambda f: odd_media.paced(f / "a.mkv", [n * 2000 for n in range(5)]),
    "sparse at the end": lambda f: odd_media.paced(
        f / "a.mkv", [*(n * 33 for n in range(200)), *(6600 + n * 500 for n in range(60))]
    ),
    "some dropped": lambda f: odd_media.paced(f / "a.mkv", [n * 33 for n in range(300) if n % 17]),
    "webm": lambda f: odd_media.paced(
        f / "a.webm", [n * 37 + n % 5 * 9 for n in range(90)], form="webm", codec="libvpx-vp9"
    ),
    "flv": lambda f: odd_media.paced(
        f / "a.flv", [n * 1000 for n in range(60)], form="flv", codec="flv"
    ),
    "steady": lambda f: odd_media.steady(f / "a.mkv", 200, form="matroska"),
    "no length": lambda f: odd_media.paced(
        f / "a.webm", [n * 40 for n in range(90)], form="webm", codec="libvpx-vp9", live=True
    ),
    "gif": lambda f: odd_media.gif(f / "a.gif", 12),
    "edit list": lambda f: odd_media.hiding(f / "a.mp4", 300, 155),
}


_FEWER = before(VLLM_0_29, "loaders keep fewer frames of a variable rate than they choose")
_MARKS = {
    **dict.fromkeys(("one a second", "five", "sparse at the end", "webm"), _FEWER),
    "no length": since(VLLM_0_33, "loaders count the frames of a clip that declares no length"),
    "edit list": before(VLLM_0_32, "loaders count the frames that an edit list hides"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=_MARKS.get(n, ())) for n in CLIPS])
def test_as_many_frames_as_vllms_loaders_keep(lab, tmp_path: Path, name: str) -> None:
    """Variable rates and GIF are among them."""
    path, qwen = CLIPS[name](tmp_path), lab(QWEN)
    file = seen(path, "video")
    assert isinstance(file.shape, VideoShape)
    loaders: list[tuple[Loader, int, Setting]] = [
        ("qwen2_vl", 2, Setting()),
        ("uniform", -1, uniform()),
    ]
    for loader, fps, setting in loaders:
        (truth,) = qwen.costs(File("video", str(path)), setting=setting)
        said = list(Sampling(loader, 32, fps).possible_frames(file.shape, file.encoding))
        if isinstance(truth, Cost):
            assert truth.sampled[0] in said, (loader, truth, said)
        else:
            assert said == [], (loader, truth)


@pytest.mark.parametrize("count", [2, 6, 7, 40])
def test_frames_that_a_client_sends(lab, tmp_path: Path, count: int) -> None:
    """They come as `data:video/jpeg`."""
    reader = RequestLines(str(tmp_path), Reading(tmp_path))
    item = reader.find_item(("video_url", odd_media.frames_url(count)), "here", 1)
    file, truth = expect(EncodedItem, examine(item)), lab(QWEN).cost(File("video", item.path))
    shape = expect(VideoShape, file.shape)
    said = Sampling("qwen2_vl", 32, 2).possible_frames(shape, file.encoding)
    assert list(said) == [truth.sampled[0]]


@pytest.mark.parametrize("name", ["a.pcx", "a.tga", "a.im"])
def test_pictures_of_every_format_that_vllm_opens(lab, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    Image.new("RGB", (280, 140)).save(path)
    truth = lab(QWEN).cost(File("image", str(path)))
    shape = expect(ImageShape, seen(path, "image").shape)
    assert (shape.width_px, shape.height_px) == truth.sampled
