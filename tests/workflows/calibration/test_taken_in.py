"""Items that the server refuses set neither limits nor caps, and are named."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.corpus.chat import Prompt
from mmcalib.domain.model import Server
from mmcalib.domain.shapes import AudioShape, Encoding, Shape, VideoShape
from mmcalib.errors import CorpusError
from mmcalib.progress import Silent
from mmcalib.storage.location import allow_hosts
from mmcalib.workflows.corpus import LoadedCorpus, read_corpus
from mmcalib.workflows.run.stages import (
    check_server,
    check_sizes,
    count_as_loaded,
    drop_refused,
    required_environment,
)
from tests.corpus.serving import serving
from tests.odd_media import meeting, silence

SIZE, LENGTH = "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "VLLM_MAX_AUDIO_DECODE_DURATION_S"
SERVER = Server(limits={SIZE: 25, LENGTH: 600}, decodes={"h264": True, "av1": False})
SHORT, LONG = AudioShape(16_000, 16_000), AudioShape(900 * 16_000, 16_000)
CLIP = VideoShape(100, 25.0, 4.0, 640, 360)
FITS, AV1 = Encoding(codec="h264"), Encoding(codec="av1")


def corpus(*items: tuple[Shape, str, Encoding]) -> LoadedCorpus:
    census, prompts = Census(), PromptCensus()
    for shape, path, encoding in items:
        census.add(shape, path, encoding=encoding)
        prompts.add([shape], Prompt(f"of {path}"))
    return LoadedCorpus(census, prompts, (), len(items))


def test_items_that_the_server_refuses_are_left_out() -> None:
    whole = corpus(
        (SHORT, "a.wav", Encoding(channels=1)),
        (LONG, "b.wav", Encoding(channels=1, file_mib=28)),
        (CLIP, "c.mp4", AV1),
        (CLIP, "d.mp4", FITS),
    )
    left, refused = drop_refused(whole, SERVER)
    assert [(e.shape, e.count, e.exemplars) for e in left.census.shapes()] == [
        (CLIP, 1, ("d.mp4",)),
        (SHORT, 1, ("a.wav",)),
    ]
    assert {s.exemplar.origin for s in left.prompts.signatures()} == {"of a.wav", "of c.mp4"}
    values = required_environment(refused, SERVER)
    assert values == {SIZE: 28, LENGTH: 900}
    (check,) = check_server(refused, 4, values)
    assert check.status == "warn"
    assert "2 of 4 items" in check.detail
    assert "c.mp4: av1" in check.detail
    assert f"{SIZE}=28 {LENGTH}=900" in check.remedy
    assert "H.264" in check.remedy


def test_nothing_left_names_the_command_that_counts_it_in() -> None:
    """A hint for the server alone would lead to the same error again."""
    with pytest.raises(CorpusError) as caught:
        drop_refused(corpus((LONG, "b.wav", Encoding(channels=1))), SERVER)
    hint = caught.value.hint
    assert hint.startswith(f"{LENGTH}=900 mmcalib run --emit env includes")


def test_a_rate_that_takes_gigabytes_never_comes_to_vllm() -> None:
    """Such a file would end the child, a stand-in of its shape as well."""
    odd = AudioShape(2174, 21_739), "odd.wav", Encoding(channels=1)
    left, refused = drop_refused(corpus((SHORT, "a.wav", Encoding(channels=1)), odd), SERVER)
    assert [e.shape for e in left.census.shapes()] == [SHORT]
    (check,) = check_server(refused, 2, required_environment(refused, SERVER))
    assert "odd.wav: audio at 21,739 Hz" in check.detail
    assert check.remedy == "resample to 16 kHz"
    with pytest.raises(CorpusError) as caught:
        drop_refused(corpus(odd), SERVER)
    assert caught.value.hint == "resample to 16 kHz"


def test_packed_sound_counts_once_per_channel() -> None:
    """PCM in a MOV: vLLM's loader counts each sample once per channel."""
    packed = Encoding(channels=2, sample_format="s16")
    whole = corpus((SHORT, "a.wav", Encoding(channels=2)), (SHORT, "b.mov", packed))
    found = count_as_loaded(whole, SERVER)
    twice = AudioShape(32_000, 16_000)
    exemplars = {e.shape: e.exemplars for e in found.census.shapes()}
    assert exemplars == {SHORT: ("a.wav",), twice: ("b.mov",)}
    assert [(s.signature.shapes, s.count) for s in found.prompts.signatures()] == [((twice,), 2)]
    assert count_as_loaded(whole, replace(SERVER, torchcodec=True)) is whole


def test_a_recording_is_read_again_for_its_sound(tmp_path: Path) -> None:
    """A model of sound took none of a corpus of meetings; each reading remembers its own."""
    media, cache = tmp_path / "media", tmp_path / "cache"
    media.mkdir()
    meeting(media / "a.mp4")
    silence(media / "b.wav", 1, 16_000)
    read = partial(read_corpus, [media], [], allowed_root=None, cache=cache, progress=Silent())
    for _ in range(2):
        plain = read()
        assert (plain.census.items("video"), plain.census.items("audio")) == (1, 1)
        assert plain.is_sound_only_for(["audio"])
        assert not plain.is_sound_only_for(["audio", "video"])
        heard = read(sound=True)
        assert (heard.census.items("video"), heard.census.items("audio")) == (0, 2)
        assert not heard.skipped


def test_a_request_that_is_larger_than_the_server_reads_is_named(tmp_path: Path) -> None:
    """0.33 adds up whole MiB of all downloads of a request, and counts the bytes of its body."""
    downloads, body = "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB", "VLLM_HTTP_MAX_REQUEST_BODY_SIZE"
    silence(tmp_path / "a.wav", 60, 16_000)  # 1.83 MiB
    sound = (tmp_path / "a.wav").read_bytes()
    asked, requests = [], tmp_path / "requests.jsonl"
    with serving() as server, allow_hosts(["127.0.0.1"]):
        for number in (1, 2, 1):
            urls = [server.put(f"{place}.wav", sound) for place in range(number)]
            parts = [{"type": "audio_url", "audio_url": {"url": url}} for url in urls]
            parts.append({"type": "text", "text": "a" * 10 ** (number + 1)})
            asked.append({"messages": [{"role": "user", "content": parts}]})
        # Of a batch file, a client sends only the body.
        lines = [json.dumps({"custom_id": "1" * 999, "body": one}) for one in asked]
        requests.write_text("\n".join(lines))
        read = read_corpus([], [requests], allowed_root=None, cache=tmp_path, progress=Silent())
    most = len(json.dumps(asked[1]))
    fits, over = ({downloads: 4 - less, body: most - less} for less in (0, 1))
    assert not list(check_sizes(read.prompts, Server(limits=fits)))
    first, second = check_sizes(read.prompts, Server(limits=over))
    rejects, takes = "the server rejects requests.jsonl:2:", "the server takes up to"
    large = "downloads of up to 4 MiB in one request"
    assert first.detail == f"{rejects} {large}, {takes} 3 MiB ({downloads})"
    assert (first.status, first.remedy) == ("warn", f"{downloads}=4 for the server")
    assert second.detail == f"{rejects} a body of {most:,} bytes, {takes} {most - 1:,} ({body})"
    assert (second.status, second.remedy) == ("warn", f"{body}={most} for the server")
