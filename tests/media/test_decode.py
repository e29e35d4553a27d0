"""Files decoded whole: pictures that end too early, sounds, clips."""

import io
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import av
import pytest
from PIL import Image, ImageOps

from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.domain.shapes import (
    STREAMED,
    AudioShape,
    EncodedItem,
    ImageShape,
    Modality,
    VideoShape,
)
from mmcalib.media.decode import decode_check
from mmcalib.media.failure import NO_SAMPLES
from mmcalib.media.probe import examine, examine_whole, probe
from tests.builders import expect, some
from tests.odd_media import (
    amr,
    clips,
    heard,
    meeting,
    odd_sound,
    open_flac,
    pictures,
    silence,
    steady,
    titled,
)


def cut(path: str, share: float) -> str:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(len(data) * share)])
    return path


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.gif", "a.webp", "a.tif", "a.avif"])
def test_whole_images_pass(make_image, name) -> None:
    assert decode_check(Item(make_image(name, 64, 48)), "image") is None


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_a_cut_image_has_a_header_but_does_not_decode(make_image, name) -> None:
    path = cut(make_image(name, 640, 480), 0.6)
    assert not isinstance(probe(Item(path)), Skipped)
    why = decode_check(Item(path), "image")
    assert "truncated" in some(why)


def test_frames_of_too_many_pixels_are_sized_but_not_decoded(tmp_path: Path) -> None:
    """Whether a server takes them is its own limit; what decodes here is protected from them."""
    path = tmp_path / "wide.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = 20_000, 9_000, "monob"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame(20_000, 9_000, "monob")))
        container.mux(stream.encode())
    cut(str(path), 0.9)
    shape = expect(VideoShape, probe(Item(str(path))))
    assert (shape.width_px, shape.height_px) == (20_000, 9_000)
    assert decode_check(Item(str(path)), "video") is None


def test_a_cut_video_with_its_index_in_front(tmp_path: Path) -> None:
    whole = clips(tmp_path / "a.mp4", (64, 48), frames=60, options={"movflags": "faststart"})
    path = cut(str(whole), 0.5)
    assert not isinstance(probe(Item(path)), Skipped)
    assert decode_check(Item(path), "video") is not None


@pytest.mark.parametrize("modality", ["image", "video", "audio"])
def test_text_decodes_as_nothing(tmp_path: Path, modality: Modality) -> None:
    path = tmp_path / "a.txt"
    path.write_text("words\n" * 100)
    why = decode_check(Item(str(path)), modality)
    assert why
    assert "\n" not in why


def noise(form: str, mode: str = "RGB", **options: object) -> bytes:
    page = io.BytesIO()
    Image.effect_noise((301, 200), 90).convert(mode).save(page, form, **options)
    return page.getvalue()


def seen_whole(data: bytes, declared: Modality | None = None) -> EncodedItem | Skipped:
    return examine_whole(Item("memory://a", declared, ByteSource("", len(data), data=data)))


def examined(data: bytes, declared: Modality | None = None) -> EncodedItem:
    return expect(EncodedItem, seen_whole(data, declared))


def pillow_takes(data: bytes) -> bool:
    """Load a picture as vLLM 0.32 does (`load_bytes`, vllm/multimodal/media/image.py)."""
    try:
        picture: Image.Image = Image.open(io.BytesIO(data))
        with suppress(Exception):
            picture = ImageOps.exif_transpose(picture)
        picture.load()
    except Exception:  # noqa: BLE001 - of any kind: the server refuses it
        return False
    return True


def with_preview() -> bytes:
    """A camera's JPEG: its EXIF has a picture of its own, which has an end of its own."""
    page, exif = io.BytesIO(), Image.Exif()
    Image.new("RGB", (16, 16)).save(page, "JPEG")
    exif[0x927C] = page.getvalue()
    return noise("JPEG", exif=exif)


FORMS = [
    *(("BMP", mode) for mode in ("1", "L", "P")),
    *(("PPM", mode) for mode in ("1", "L", "I;16")),
    *(("TGA", mode) for mode in ("1", "P", "RGBA")),
    *(("TIFF", mode) for mode in ("1", "I;16", "CMYK")),
    *(("SGI", "RGB"), ("ICO", "RGB"), ("JPEG2000", "RGB"), ("ICNS", "RGBA"), ("IM", "F")),
    *(("PCX", "L"), ("PCX", "RGB"), ("DDS", "RGB"), ("QOI", "RGB"), ("XBM", "1")),
]
PICTURES: dict[str, Callable[[], bytes]] = {
    **{form: partial(noise, form) for form in ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP")},
    **{form: partial(noise, form) for form in ("TIFF", "PPM", "TGA")},
    "progressive": lambda: noise("JPEG", progressive=True),
    "preview": with_preview,
    "lzw": lambda: noise("TIFF", compression="tiff_lzw"),
    **{f"{form} of {mode}": partial(noise, form, mode) for form, mode in FORMS},
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_without_its_end_passes_where_vllm_takes_it(name: str) -> None:
    """An end mark anywhere is not the end."""
    whole = PICTURES[name]()
    assert examined(whole, "image").encoding.fault == ""
    assert examined(whole + bytes(100_000), "image").encoding.fault == ""
    for size in (len(whole) // 2, len(whole) * 4 // 5, len(whole) - 200, len(whole) - 13):
        part = whole[:size]
        seen = seen_whole(part, "image")
        assert isinstance(seen, EncodedItem) == pillow_takes(part), size
        assert isinstance(seen, Skipped) or not seen.encoding.fault


def test_a_png_without_its_last_chunk_is_whole() -> None:
    part = noise("PNG")[:-12]
    assert pillow_takes(part)
    assert examined(part, "image").encoding.fault == ""


def test_a_picture_without_its_pixels_does_not_pass() -> None:
    """A JPEG of headers and an end was whole, as was a BMP too large to decode."""
    jpeg = noise("JPEG")
    data = jpeg[: jpeg.rindex(b"\xff\xda")] + b"\xff\xd9"
    assert not pillow_takes(data)
    assert isinstance(seen_whole(data, "image"), Skipped)
    side, size = (9000).to_bytes(4, "little"), (54 + 9000 * 27_000).to_bytes(4, "little")
    header = bytearray(noise("BMP")[:54])
    header[2:6], header[18:26] = size, side * 2
    assert examined(bytes(header) + bytes(9000), "image").encoding.fault == "cut_short"


def test_an_avif_that_lacks_one_byte_is_refused() -> None:
    """The server answers 500."""
    assert isinstance(seen_whole(noise("AVIF")[:-1], "image"), Skipped)


@pytest.mark.parametrize("form", ["PNG", "GIF", "PPM"])
def test_a_large_picture_without_its_end_is_not_decoded(form: str) -> None:
    page = io.BytesIO()
    Image.new("L", (6000, 6000)).save(page, form)
    assert examined(page.getvalue(), "image").encoding.fault == ""
    assert examined(page.getvalue()[:-100], "image").encoding.fault == "cut_short"


def test_a_large_png_of_too_few_bytes_is_not_whole() -> None:
    data = bytearray(noise("PNG"))
    data[16:24] = (9000).to_bytes(4) * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4)
    assert examined(bytes(data), "image").encoding.fault == "cut_short"


def test_an_image_in_words_that_help(tmp_path: Path) -> None:
    """A HEIC is not damaged, and a TGA is one by its name alone."""
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200)
    assert expect(Skipped, seen_whole(heic)).reason == "vLLM does not open HEIC"
    path = tmp_path / "scan.tga"
    path.write_bytes(noise("TGA"))
    assert probe(Item(str(path))) == ImageShape(301, 200)


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_flac_without_its_end_is_seen(make_audio, share: float) -> None:
    path = make_audio("a.flac", samples=160_000)
    assert examined(Path(path).read_bytes()).encoding.fault == ""
    assert examined(Path(cut(path, share)).read_bytes()).encoding.fault == "cut_short"
    assert not isinstance(probe(Item(path)), Skipped)
    assert decode_check(Item(path), "audio") is not None


@pytest.mark.parametrize(
    ("form", "codec"), [("amr", ""), ("adts", "aac"), ("flv", "aac"), ("wv", "wavpack")]
)
def test_a_stream_without_its_end_is_seen(tmp_path: Path, form: str, codec: str) -> None:
    """vLLM refuses it by its last packet, of which a part is there."""
    path = tmp_path / "a"
    whole = (heard(path, codec, form, 20) if codec else amr(path, 20.02)).read_bytes()
    assert examined(whole).encoding.fault == ""
    assert examined(whole[: int(len(whole) * 0.71)]).encoding.fault == "cut_short"


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        *((f"a.{form}", {"movflags": "faststart"}, "cut_short") for form in ("mp4", "mov")),
        ("a.mp4", {"movflags": "frag_keyframe+empty_moov"}, "cut_short"),
        *(("a.mkv", {}, "cut_short"), ("a.mkv", {"live": "1"}, ""), ("a.avi", {}, "cut_short")),
    ],
)
def test_a_clip_without_its_end_is_seen(tmp_path: Path, name, options, fault: str) -> None:
    """Half a download: the server found no frame in one file, in another fewer that cost more."""
    path = clips(tmp_path / name, (64, 48), frames=60, sound_s=1, options=options)
    whole = path.read_bytes()
    for data in (whole, whole + bytes(3000)):
        assert examined(data).encoding.fault == ""
    for share in (0.5, 0.9):
        part = whole[: int(len(whole) * share)]
        assert examined(part).encoding.fault == fault
        if "movflags" in options:
            assert examined(part, "audio").encoding.fault == fault


@pytest.mark.parametrize(("form", "codec"), [("ac3", "ac3"), ("matroska", "aac")])
def test_what_follows_a_sound_is_seen(tmp_path: Path, form: str, codec: str) -> None:
    """vLLM refuses such a stream, and decodes two Matroska files as one sound."""
    whole = heard(tmp_path / "a", codec, form, 3, 48_000).read_bytes()
    assert examined(whole, "audio").encoding.fault == ""
    more = whole if form == "matroska" else b"junk" * 99
    assert examined(whole + more, "audio").encoding.fault == "cut_short"


def test_an_mp3_behind_other_bytes_is_not_found_by_its_name(tmp_path: Path) -> None:
    whole = heard(tmp_path / "whole.mp3", "libmp3lame", "mp3", 3).read_bytes()
    (tmp_path / "a.mp3").write_bytes(b"junkjunk" * 40 + whole)
    assert isinstance(examine_whole(Item(str(tmp_path / "a.mp3"), "audio")), Skipped)


def test_a_tag_before_a_flac_is_no_damage(make_audio) -> None:
    whole = Path(make_audio("a.flac", samples=160_000)).read_bytes()
    tag = b"ID3\4\0\0\0\0\x07\x68TXXX\0\0\x07\x5e\0\0\3" + b"a" * 989
    assert examined(tag + whole).encoding.fault == ""
    assert examined((tag + whole)[:-2000]).encoding.fault == "cut_short"


@pytest.mark.parametrize(("codec", "form"), [("libx264", "h264"), ("libx265", "hevc")])
def test_a_raw_stream_is_a_clip(tmp_path: Path, codec: str, form: str) -> None:
    item = Item(str(steady(tmp_path / "a", 12, codec, form)), "video")
    shape = expect(VideoShape, expect(EncodedItem, examine(item)).shape)
    assert (shape.num_frames, shape.width_px) == (12, 64)


def test_an_animated_png_is_a_clip_if_so_declared() -> None:
    page, frames = io.BytesIO(), pictures(3)
    frames[0].save(page, "PNG", save_all=True, append_images=frames[1:])
    assert examined(page.getvalue(), "image").shape == ImageShape(64, 48)
    assert expect(VideoShape, examined(page.getvalue(), "video").shape).num_frames == 3


def tagged(path: Path) -> Path:
    """Write a title in Latin-1."""
    whole = heard(path.with_name(f"whole-{path.name}"), "aac", "matroska", 2)
    return titled(whole, path, b"caf\xe9")


# The server's, too; from 19 on it reads what is no UTF-8.
PYAV = int(av.__version__.split(".")[0])
SOUNDS: dict[str, tuple[Callable[[Path], Path], int, int, str]] = {
    "a.amr": (lambda path: amr(path, 20.02), 160_160, 165_326, ""),
    "a.flac": (lambda path: open_flac(path, 3), 48_000, 2**63 - 1, ""),
    "a.aac": (lambda path: heard(path, "aac", "adts", 20), 321_536, 8_206_342, ""),
    "a.mp3": (lambda path: heard(path, "libmp3lame", "mp3", 20), 321_408, 491_328, ""),
    "a.wav": (lambda path: odd_sound(path, "GSM610"), 16_000, 0, "unseekable"),
    "b.wav": (lambda path: odd_sound(path, "NMS_ADPCM_16"), 16_000, 0, "unseekable"),
    "c.wav": (lambda path: heard(path, "adpcm_g722", "wav", 2), 32_000, 0, "unreadable"),
    "a.mka": (lambda path: tagged(path), 34_816, 0, "tags" if PYAV < 19 else ""),
    "a.xi": (lambda path: odd_sound(path, "DPCM_16"), 16_000, 0, "unseekable"),
    **{
        f"a.{form}": (lambda path: odd_sound(path, "PCM_16"), 16_000, 0, "")
        for form in ("nist", "avr", "paf", "svx", "htk")
    },
}


@pytest.mark.parametrize("name", SOUNDS)
def test_what_is_in_a_sound_and_what_its_loader_believes(tmp_path: Path, name: str) -> None:
    """Neither is damage."""
    make, samples, claimed, fault = SOUNDS[name]
    item = Item(str(make(tmp_path / name)))
    seen = expect(EncodedItem, examine_whole(item))
    assert isinstance(seen.shape, AudioShape)
    # FFmpeg's releases write the length of a Matroska track with and without its padding.
    assert seen.shape.num_samples == pytest.approx(samples, rel=0.03 if name == "a.mka" else 0.0)
    assert seen.encoding.claimed_samples == pytest.approx(claimed, rel=0.01)
    assert seen.encoding.fault == fault
    assert examine(item) == seen, "run counts what check judges"
    assert decode_check(item, "audio") is None


@pytest.mark.parametrize(("codec", "reads"), [("h264", False), ("mpeg4", True)])
def test_a_transport_stream_is_named_where_it_does_not_decode(tmp_path, codec, reads) -> None:
    path = clips(tmp_path / "a.ts", (64, 48), frames=45, codec=codec, form="mpegts")
    why = decode_check(Item(str(path)), "video")
    assert why == (None if reads else f"{STREAMED}; remux it to MP4")


def test_a_sound_without_samples_is_no_damage(tmp_path: Path) -> None:
    seen = expect(Skipped, examine_whole(Item(str(silence(tmp_path / "a.wav", 0, 16_000)))))
    assert seen.reason == NO_SAMPLES


def test_a_recording_is_its_sound_to_a_model_or_request_of_sound(tmp_path: Path) -> None:
    path = str(meeting(tmp_path / "a.mp4"))
    assert isinstance(probe(Item(path)), VideoShape)
    seen = [look(Item(path), sound=True) for look in (examine, examine_whole)]
    for found in (*(expect(EncodedItem, one).shape for one in seen), probe(Item(path, "audio"))):
        # With the encoder's delay; FFmpeg before 9 plays the last frame to its end.
        assert expect(AudioShape, found).num_samples in (4 * 16_000 + 1024, 64 * 1024)
    assert isinstance(examine(Item(path, "video"), sound=True), EncodedItem)
