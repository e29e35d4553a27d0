"""Lines of vLLM's custom benchmarks among chat requests."""

import base64
import gzip
import json
import lzma
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mmcalib.census.counter import count_corpus
from mmcalib.corpus.chat import Prompt, url_part
from mmcalib.corpus.grammar import Grammar
from mmcalib.corpus.lines import BadRequest, parse_line
from mmcalib.corpus.requests import Reading, RequestLines, RequestsSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import ImageShape
from mmcalib.errors import CorpusError, UsageError
from mmcalib.storage.location import allow_hosts
from mmcalib.text import decode_base64
from tests.builders import expect
from tests.census.looking import prober
from tests.corpus.listed import prompts_of, reason
from tests.corpus.media import data_url, png
from tests.corpus.serving import serving
from tests.programs import run_python
from tests.schemas import DATA

REMOTE = "remote URL: its host is not in --allowed-media-domains"
PIXEL = base64.b64encode(b"bytes of an image").decode()


def image(url: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(*content: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def naming(*urls: object) -> dict[str, Any]:
    return user(*map(image, urls))


def raw(line: object) -> bytes:
    """A line as it stands, or of JSON."""
    if isinstance(line, bytes):
        return line
    return os.fsencode(line if isinstance(line, str) else json.dumps(line))


def source(folder: Path, *lines: object, **options: Any) -> RequestsSource:
    (folder / "requests.jsonl").write_bytes(b"\n".join(map(raw, lines)))
    return RequestsSource(folder / "requests.jsonl", Reading(folder / "scratch", **options))


def one(folder: Path, line: object, **options: Any) -> Prompt:
    (prompt,) = prompts_of(source(folder, line, **options))
    return prompt


def names_of(prompt: Prompt) -> list[str]:
    return [Path(item.path).name for item in prompt.items]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("a.jpg", "b.mp4", "c.wav", "a.png", "b.png"):
        (folder / name).write_bytes(b"x")
    return folder


def test_a_request_is_items_text_and_messages_to_replay(folder: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    clip = {"type": "video_url", "video_url": "b.mp4"}
    words = {"type": "text", "text": "What?"}
    sound = url_part("audio_url", f"file://{folder}/c.wav")
    asked = {
        "role": "user",
        "content": [image("a.jpg"), clip, words, sound, "Really?"],
        "name": "u",
    }
    answer: dict[str, object] = {"role": "assistant", "content": None, "tool_calls": []}
    prompt = one(folder, {"messages": [system, asked, answer]})
    assert prompt.origin == "requests.jsonl:1"
    assert prompt.items == (
        Item(str(folder / "a.jpg"), "image"),
        Item(str(folder / "b.mp4"), "video"),
        Item(str(folder / "c.wav"), "audio"),
    )
    assert prompt.request.text() == "Be brief.\nWhat?\nReally?"
    urls = image(f"file://{folder}/a.jpg"), url_part("video_url", f"file://{folder}/b.mp4")
    sent = [*urls, words, sound, "Really?"]
    assert prompt.request.messages == [system, {**asked, "content": sent}, answer]


def test_batch_lines_blank_lines_a_byte_order_mark_and_ends_of_any_kind(folder: Path) -> None:
    batch = {"custom_id": "1", "url": "/v1/chat/completions", "body": user(image("a.jpg"))}
    lines = ("\ufeff" + json.dumps(batch), "", user("words"), GOOD + b"\r", b" \t\r", b"", GOOD)
    found = source(folder, *lines).prompts()
    origins = [prompt.origin for prompt in found if isinstance(prompt, Prompt)]
    assert origins == [f"requests.jsonl:{line}" for line in (1, 3, 4, 7)]


# Lines as servers, proxies and their exports keep them, with the answer's tokens and the second.
ENVELOPES = json.loads((DATA / "envelopes.json").read_text("utf-8"))


@pytest.mark.parametrize(
    "endpoint",
    [
        *("embeddings", "pooling", "score", "rerank", "classify", "audio/transcriptions"),
        "completions",
    ],
)
def test_a_body_for_another_endpoint_is_no_chat(folder: Path, endpoint: str) -> None:
    name = endpoint.rpartition("/")[2]
    others = [
        ({"custom_id": "1", "url": f"/v1/{endpoint}", "body": user("hello")}, name),
        ({"endpoint": f"https://h/v1/{endpoint}/?a=b", "request": user(image("a.jpg"))}, name),
        ({"path": endpoint, **user("hello")}, name),
        ({"url": "/v1/new/one/", "body": user("hello")}, "new/one"),
    ]
    for chat in (user("hello"), {"url": "/v1/x/chat/completions/", "body": user("hello")}):
        for line, named in others:
            usable, skipped = source(folder, chat, line).prompts()
            assert isinstance(usable, Prompt)
            assert reason(skipped) == f"sent to the endpoint {named}, which is not modelled"


def test_sessions_start_together_and_go_on_after_their_delays(folder: Path) -> None:
    lines = [
        {**user("hello"), "session_id": session, "delay": delay}
        for session, delay in (("a", 900), ("a", 500), ("b", 900), ("a", 1000), ("b", 250))
    ]
    assert [text.sent_s for text in source(folder, *lines).texts()] == [0.0, 0.5, 0.0, 1.5, 0.25]


FIELDS = (
    *("messages", "input", "system", "tools", "turns", "texts", "images", "text", "tool_choice"),
    *("captureData", "traceId", "delay", "output_length", "body"),
)
ODD = st.sampled_from([None, 0, "", "a", [], [0], {}, {"type": "image"}, [{"role": 1}]])


@given(
    st.fixed_dictionaries(
        {"url": st.sampled_from(["/v1/messages", "/v1/responses", ""])},
        optional=dict.fromkeys(FIELDS, ODD),
    )
)
def test_odd_values_cost_only_their_line(line: dict[str, object]) -> None:
    try:
        request, _ = parse_line(json.dumps(line).encode())
    except BadRequest:
        return
    assert request.messages


@pytest.mark.parametrize(
    ("line", "roles", "names", "text"), json.loads((DATA / "aiperf.json").read_text("utf-8"))
)
def test_lines_of_aiperf(folder: Path, line: object, roles: str, names, text: str) -> None:
    prompt = one(folder, line)
    assert "".join(message["role"][0] for message in prompt.request.messages) == roles
    assert names_of(prompt) == names
    assert prompt.request.text() == text


@pytest.mark.parametrize("name", ENVELOPES)
def test_envelopes(folder: Path, name: str) -> None:
    line, answer, sent_s = ENVELOPES[name].values()
    (text,) = source(folder, line).texts()
    assert (text.request.answer_tokens, text.sent_s) == (answer, sent_s)
    assert one(folder, line).request.text() == "hello"


@pytest.mark.parametrize("name", ["new\nline.jpg", "quo\"t'e.jpg", "50%41 #?.jpg", "ü.jpg", "a:b"])
def test_names_as_paths_and_as_percent_encoded_urls(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"x")
    item = Item(str(folder / name), "image")
    urls = (name, str(folder / name), f"file://{quote(str(folder / name))}")
    encoded = f"file://{folder}/{quote(name)}"
    for url in (*urls, f"FILE:{quote(str(folder / name))}?x=1#y"):
        prompt = one(folder, user(image(url)))
        assert prompt.items == (item,)
        assert prompt.request.messages == user(image(encoded))["messages"]


@pytest.mark.parametrize("mark", "#?")
def test_a_mark_that_is_not_percent_encoded_ends_the_path(folder: Path, mark: str) -> None:
    for name in (f"a{mark}b.jpg", "a"):
        (folder / name).write_bytes(b"x")
    prompt = one(folder, user(image(f"file://{folder}/a{mark}b.jpg")))
    assert prompt.items == (Item(str(folder / "a"), "image"),)


@given(st.text("AAAA==\n-é ", max_size=12))
def test_base64_is_what_vllm_s_decoder_takes(payload: str) -> None:
    vllm_decodes_with = pytest.importorskip("pybase64")
    try:
        theirs = vllm_decodes_with.b64decode(payload, validate=True)
    except ValueError:
        theirs = None
    try:
        ours = decode_base64(payload)
    except ValueError:
        ours = None
    assert ours == theirs


def test_a_path_as_it_stands_is_no_url(folder: Path) -> None:
    reader = RequestLines(str(folder), Reading(folder / "scratch", urls_only=True))
    said = [
        reader.prompt("it", json.dumps(user(image(url))).encode())
        for url in ("a.jpg", str(folder / "a.jpg"), f"file://{folder}/a.jpg")
    ]
    assert [getattr(one, "reason", "taken")[:4] for one in said] == ["vLLM", "vLLM", "take"]


def test_a_body_is_measured_if_its_line_exceeds_the_limit(folder: Path) -> None:
    """A long line is measured although a longer one came first; an envelope is not sent."""
    bodies = [json.dumps(user("a" * 900)), json.dumps(user("words"))]
    lines = [f'{{"id": "{"1" * 500}", "body": {body}}}'.encode() for body in bodies]
    long, short = map(len, bodies)
    for limit, sizes in ((400, [long, short]), (0, [*map(len, lines)])):
        reader = RequestLines(str(folder), Reading(folder, as_sent=True, most_body_bytes=limit))
        read = [reader.prompt("it", line) for line in lines]
        assert [getattr(prompt, "body_bytes", None) for prompt in read] == sizes


def test_plain_paths_are_not_percent_decoded(folder: Path) -> None:
    (skipped, *_) = source(folder, user(image("%61.jpg")), user("words")).prompts()
    assert isinstance(skipped, Skipped)


def test_outside_the_root(folder: Path) -> None:
    secret = folder.parent / "secret.jpg"
    secret.write_bytes(b"x")
    (folder / "link.jpg").symlink_to(secret)
    (folder / "up").symlink_to("..")
    for url in ("/etc/passwd", "../secret.jpg", "link.jpg", "up/secret.jpg", f"file://{secret}",
                f"file://{folder}/%2e%2e/secret.jpg", "../none.jpg"):  # fmt: skip
        found = source(folder, user(image("a.jpg")), user(image(url)))
        for read in (found.prompts, found.items):
            with pytest.raises(UsageError, match="outside the allowed folder") as caught:
                list(read())
            assert caught.value.exit_code == 2
            assert caught.value.message.startswith("requests.jsonl:2: /")
            assert "--allowed-local-media-path" in caught.value.hint
    allowed = one(folder, user(image("../secret.jpg")), allowed_root=folder.parent)
    assert allowed.items == (Item(str(secret), "image"),)


def test_missing_file_is_listed_and_so_is_its_request(folder: Path) -> None:
    found = source(folder, user(image("none.jpg"), image("a.jpg")), user("words"))
    missing = str(folder / "none.jpg")
    assert list(found.items()) == [
        Skipped(missing, "no such file"),
        Item(str(folder / "a.jpg"), "image"),
    ]
    assert next(found.prompts()) == Skipped("requests.jsonl:1", f"missing file: {missing}"[:200])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        *json.loads((DATA / "unusable.json").read_text("utf-8")),
        ("{not json", "not JSON: "),
        ("[" * 100_000, "not JSON: "),
        ("\udcff", "not UTF-8"),
        ("{}", "not a chat request: messages: missing"),
        ('{"messages": []}', "not a chat request: messages: "),
        ('{"body": {"input": "x"}}', "not a chat request: messages: missing; the fields are input"),
        ({"file_name": "a.jpg", "text": "b"}, "mmcalib does not read the media in `file_name`"),
        (user({"text": "b"}, {"image": "a.jpg"}), "0.content.0: a part without a type is not"),
        (json.dumps({"request": json.dumps(user("\ud800"))}), "not Unicode: "),
        (json.dumps({"request": "[" * 100_000}), "not a chat request: messages: "),
        ('{"messages": [{"role": "user", "content": 3}]}', "not a chat request: 0.content: "),
        (user(image("a\0b")), "not a path"),
        (user(image("https://example.com/a.jpg")), REMOTE),
        (
            user(image("data:image/png;base64,iVBO... (litellm_truncated 81234 chars)")),
            "base64 was truncated by LiteLLM (raise MAX_STRING_LENGTH_PROMPT_IN_DB)",
        ),
        (user(image("iVBORw0KGgo/AAAA" * 30)), "base64 without a header: put data:image/png"),
        (user(image(data_url(b"<?xml version='1.0'?><svg/>", ""))), "vLLM does not read SVG"),
        (user(image(data_url(b"%PDF-1.4", ""))), "vLLM does not read PDF: convert it to PNG"),
        (user(image(f"DATA:image/png;BASE64,{PIXEL}")), "data URL is not ;base64"),
        (user(image("a." * 2500)), "missing file: "),
        # vLLM refuses these as a whole.
        (
            {**user(image("a.jpg")), "media_io_kwargs": {"video": {"fps": 30}}},
            "vLLM rejects media_io_kwargs in a request without --trust-request-mm-kwargs",
        ),
        ({**user("<image>"), "images": ["a.jpg"] * 2}, "`images` and the text do not match: 2"),
        (user({"type": ["a"], "text": "b"}), "not a chat request: 0.content.0: must be text, or"),
    ],
)
def test_unusable_lines_are_listed(folder: Path, line: object, why: str) -> None:
    found = source(folder, line, user(image("a.jpg")))
    skipped, usable = found.prompts()
    assert isinstance(usable, Prompt)
    said = reason(skipped)
    assert skipped == Skipped("requests.jsonl:1", said)
    assert said.startswith(why)
    assert len(said) <= 200
    assert "\n" not in said
    assert Item(str(folder / "a.jpg"), "image") in list(found.items())


def test_inline_media_become_files_once(folder: Path) -> None:
    found = source(
        folder,
        user(image(f"data:image/png;base64,{PIXEL}"), image(f"DATA:image/png;base64,{PIXEL}")),
        user({"type": "input_audio", "input_audio": {"data": PIXEL, "format": "wav"}}),
    )
    first, second = prompts_of(found)
    assert first.items[0] == first.items[1]
    path = Path(first.items[0].path)
    assert path.parent == folder / "scratch"
    assert path.suffix == ".png"
    assert path.read_bytes() == b"bytes of an image"
    assert second.items[0].declared == "audio"
    url = Path(second.items[0].path).as_uri()
    assert second.request.media() == [("audio_url", url)]
    assert len(list(found.items())) == 2
    assert len(os.listdir(folder / "scratch")) == 2


@pytest.mark.parametrize(
    "header", ["image", "", "image/png;charset=utf-8", "image/jpeg", "image/svg+xml"]
)
def test_a_data_url_may_say_anything_of_its_type(folder: Path, header: str) -> None:
    prompt = one(folder, user(image(f"data:{header};base64,{PIXEL}")))
    assert Path(prompt.items[0].path).read_bytes() == b"bytes of an image"


def test_an_inline_format_cannot_leave_the_scratch_folder(folder: Path) -> None:
    sound = {"data": PIXEL, "format": "../../x"}
    parts = ("What is said?", {"type": "input_audio", "input_audio": sound})
    assert Path(one(folder, user(*parts)).items[0].path).parent == folder / "scratch"


def test_without_a_usable_line(folder: Path) -> None:
    with pytest.raises(CorpusError, match=r"no usable request in .*: the file is empty"):
        list(source(folder).prompts())
    with pytest.raises(CorpusError, match=r"requests\.jsonl:2: remote URL"):
        list(source(folder, "", user(image("http://x/a.jpg"))).prompts())


NOT_LINES = ", not one request per line"
INPUTS = b'{\n  "data": [{"session_id": "a", "payloads": [{"messages": []}]}]\n}'


@pytest.mark.parametrize(
    ("data", "says", "next_command"),
    [
        (gzip.compress(b"{}\n"), "compressed with gzip", "gzip -dc"),
        (lzma.compress(b"{}\n"), "compressed with xz", "xz -dc"),
        (b'\xef\xbb\xbf\n[\n  {"messages": []}\n]\n', f"a JSON list{NOT_LINES}", "jq -c .[]"),
        (INPUTS, f"AIPerf's inputs.json{NOT_LINES}", "jq -c .data[].payloads[]"),
        (b'{\n  "messages": []\n}', f"indented JSON{NOT_LINES}", "jq -c ."),
    ],
    ids=["gzip", "xz", "list", "inputs", "indented"],
)
def test_another_form_of_file_is_one_error(tmp_path, data, says: str, next_command: str) -> None:
    """The error is one line, not one for each pseudo-line."""
    path = tmp_path / "a b.jsonl.gz"
    path.write_bytes(data)
    with pytest.raises(CorpusError) as caught:
        RequestsSource(path, Reading(tmp_path))
    assert caught.value.message == f"{path} is {says}"
    assert caught.value.hint.replace("'", "") == f"{next_command} {path} > requests.jsonl"


NAMED = st.sampled_from(
    ["a.jpg", "./a.jpg", "gone.jpg", "link.jpg", "https://x/a.jpg", f"data:;base64,{PIXEL}"]
)
LINES = st.lists(
    st.one_of(
        st.lists(NAMED, max_size=3).map(lambda urls: json.dumps(user(*map(image, urls), "why?"))),
        st.sampled_from(["", "{", json.dumps({"messages": []}), json.dumps(user("words"))]),
    ),
    max_size=8,
)


@given(LINES, st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_at_rest_one_reading_tells_what_two_do(folder: Path, lines: list[str], mark: bool) -> None:
    if not (folder / "link.jpg").exists():
        (folder / "link.jpg").symlink_to("a.jpg")
    lines = [("\ufeff" if mark else "") + json.dumps(user(image("c.wav"))), *lines]
    twice, once = source(folder, *lines), source(folder, *lines, at_rest=True)
    assert list(once.prompts()) == list(twice.prompts())
    assert list(once.items()) == list(twice.items())


def test_texts_of_some_origins(folder: Path) -> None:
    found = source(folder, user("one"), user("two"), "{", user("four"))
    wanted = ("requests.jsonl:2", "requests.jsonl:3")
    every = list(found.texts())
    assert [text.origin for text in every] == [f"requests.jsonl:{n}" for n in (1, 2, 4)]
    assert list(found.texts(wanted)) == [every[1]]


def test_a_prompt_with_image_files(folder: Path) -> None:
    prompt = one(folder, {"prompt": "What?", "image_files": ["a.png", str(folder / "b.png")]})
    assert prompt.items == tuple(Item(str(folder / name), "image") for name in ("a.png", "b.png"))
    assert prompt.request.text() == "What?"
    images = [image((folder / name).as_uri()) for name in ("a.png", "b.png")]
    content = [{"type": "text", "text": "What?"}, *images]
    assert prompt.request.messages == [{"role": "user", "content": content}]


def test_content_in_any_order(folder: Path) -> None:
    content = [
        {"type": "text", "text": "Compare"},
        {"type": "image", "image": "a.png"},
        {"type": "text", "text": "and"},
        {"type": "image_url", "image_url": {"url": "b.png"}},
        {"type": "image_url", "image_url": "a.png"},
    ]
    prompt = one(folder, {"content": content, "output_tokens": 9})
    assert names_of(prompt) == ["a.png", "b.png", "a.png"]
    assert prompt.request.text() == "Compare\nand"


def test_columns_of_media_stand_at_their_marks(folder: Path) -> None:
    """Training sets: rows beside whose messages the pictures are listed."""
    words = "<image> and <image>: what differs?"
    turns = [{"role": "user", "content": words}, {"role": "assistant", "content": "a"}]
    prompt = one(folder, {"messages": turns, "images": ["a.png", {"path": "b.png"}]})
    assert names_of(prompt) == ["a.png", "b.png"]
    kinds = [part["type"] for part in prompt.request.messages[0]["content"]]
    assert kinds == ["image_url", "text", "image_url", "text"]
    assert prompt.request.text() == " and \n: what differs?\na"


def test_conversations_end_with_what_is_asked_for(folder: Path) -> None:
    """ShareGPT and LLaVA: the last answer is what a server makes."""
    said = ("system", "Be brief."), ("human", "<image> A?"), ("gpt", "B"), ("human", "C?")
    turns = [{"from": name, "value": words} for name, words in (*said, ("gpt", "D"))]
    prompt = one(folder, {"id": 7, "image": "a.png", "conversations": turns})
    roles = [message["role"] for message in prompt.request.messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert (names_of(prompt), prompt.request.text()) == (["a.png"], "Be brief.\n A?\nB\nC?")
    unknown = {"conversations": [{"from": "tool", "value": "x"}]}
    _, skipped = source(folder, user("words"), unknown).prompts()
    assert "must have a role" in reason(skipped)


def test_offline_prompts_have_their_media(folder: Path) -> None:
    data = {"image": ["a.png", "b.png"], "audio": "c.wav"}
    prompt = one(folder, {"prompt": "What?", "multi_modal_data": data})
    assert names_of(prompt) == ["a.png", "b.png", "c.wav"]
    for line in ({"prompt": "Transcribe.", "audio": "c.wav"}, {"audio": "c.wav"}):
        assert one(folder, line).items == (Item(str(folder / "c.wav"), "audio"),)


def test_a_body_of_responses_is_the_chat_that_vllm_makes(folder: Path) -> None:
    picture = {"type": "input_image", "detail": "auto", "image_url": "a.png"}
    given = [
        {"role": "user", "content": [{"type": "input_text", "text": "Total?"}, picture]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [picture]},
    ]
    body = {"input": given, "instructions": "Be brief.", "max_output_tokens": 7}
    prompt = one(folder, {"timestamp": 3, "request": body})
    assert names_of(prompt) == ["a.png", "a.png"]
    assert prompt.request.answer_tokens == 7
    roles = [turn["role"] for turn in prompt.request.messages]
    assert roles == ["system", "user", "assistant", "tool"]


def test_parts_without_a_type(folder: Path) -> None:
    parts = ({"image_url": "a.png"}, {"type": "input_image", "image_url": "b.png"})
    assert names_of(one(folder, user(*parts))) == ["a.png", "b.png"]


def test_parts_and_the_system_of_data_sets(folder: Path) -> None:
    parts = ({"type": "image", "text": None}, "x", {"type": "image", "image": "b.png"})
    found = one(folder, {**user(*parts), "images": ["a.png"], "system": "Be brief."})
    assert names_of(found) == ["a.png", "b.png"]
    assert found.request.text() == "Be brief.\nx"


def test_a_uuid_is_known_once_its_data_came_under_it(folder: Path) -> None:
    reader = RequestLines(str(folder), Reading(folder / "scratch", grammar=Grammar({})))

    def doubt(*named: tuple[str, str]) -> str:
        parts = [{**image(name), "uuid": uuid} for name, uuid in named]
        found = reader.prompt("line 1", json.dumps(user(*parts)).encode())
        return expect(Prompt, found).doubt[:6]

    (folder / "b.jpg").write_bytes((folder / "a.jpg").read_bytes())
    a, b, c = ("a.jpg", "k"), ("b.jpg", "k"), ("b.jpg", "l")
    assert [doubt(a), doubt(a), doubt(a, c), doubt(c, a)] == ["a uuid", "", "a uuid", ""]
    # The server may hold either.
    assert [doubt(b), doubt(b), doubt(a)] == ["a uuid"] * 3


@pytest.mark.parametrize("cut", [True, False])
def test_a_continued_message_may_lose_the_media_at_its_end(folder: Path, cut: bool) -> None:
    """vLLM 0.32 answers 500 to the first: "Failed to apply prompt replacement"."""
    reader = RequestLines(str(folder), Reading(folder / "scratch", grammar=Grammar({})))
    parts = [{"type": "text", "text": "Describe"}, image("a.jpg")]
    body = user(*(parts if cut else reversed(parts)))
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    found = reader.prompt("line 1", json.dumps({**body, **flags}).encode())
    assert ("continue_final_message may cut off" in expect(Prompt, found).doubt) == cut


def test_beside_chat_requests(folder: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}], "prompt": "not this"}
    batch = {"custom_id": "1", "body": chat, "prompt": "nor this"}
    row = {"prompt": "this", "image_files": ["a.png"]}
    found = source(folder, chat, batch, row).prompts()
    assert [p.request.text() for p in found if isinstance(p, Prompt)] == ["hello", "hello", "this"]


@pytest.fixture
def allowed() -> Iterator[None]:
    with allow_hosts(["example.com,127.0.0.1", "bucket"]):
        yield


@pytest.mark.usefixtures("allowed")
def test_remote_media_are_items_where_that_is_allowed(tmp_path: Path) -> None:
    url = "https://example.com/a%20b.png?size=large"
    prompt = one(tmp_path, user(image(url)))
    assert prompt.items == (Item(url, "image"),)
    content = prompt.request.messages[0]["content"]
    assert content == [{"type": "image_url", "image_url": {"url": url}}]


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    "url",
    [
        *("https://a.example.com/a.png", "https://example.com.evil/a.png"),
        *("https://example.com@evil/a.png", "http://[example.com]/a.png"),
    ],
)
def test_the_refusal_names_the_option(tmp_path: Path, url: str) -> None:
    found = source(tmp_path, naming(url), naming("https://example.com/a.png"))
    assert next(found.prompts()) == Skipped("requests.jsonl:1", REMOTE)


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    "url",
    [
        *("zip://a.png::/etc/secret.zip", "https://example.com/a.zip::file:///etc/passwd"),
        *("memory://a.png", "simplecache::https://example.com/a.png"),
    ],
)
def test_no_url_leads_back_to_this_disk(tmp_path: Path, url: str) -> None:
    found = source(tmp_path, naming(url), naming("https://example.com/a.png"))
    assert reason(next(found.prompts()))
    assert url not in [item.path for item in found.items()]


@pytest.mark.usefixtures("allowed")
def test_a_server_that_fails_costs_its_request(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    with serving() as served:
        urls = (served.put("a.png", png(40, 24)), f"{served.url}/none.png")
        taken = count_corpus([source(tmp_path, *map(naming, urls))], prober())
    assert [entry.shape for entry in taken.census.shapes()] == [ImageShape(40, 24)]
    assert taken.prompts.prompts() == 1
    assert [skipped.path for skipped in taken.skipped] == [
        f"{served.url}/none.png",
        "requests.jsonl:2",
    ]


MIB = 1 << 20
NO_URLS: tuple[object, ...] = (
    *(None, 1, [], {}, True, "\ud800", "\udcff.png", "a.png/b", "a.png\0", ".", "data:,", "data:"),
)
GOOD = json.dumps(naming("a.png")).encode()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    Image.new("L", (9, 8)).save(tmp_path / "a.png")
    return tmp_path


def between_good_ones(pictures: Path, line: bytes) -> str:
    """Why `line` is skipped; the requests before and after it must be read all the same."""
    taken = count_corpus([source(pictures, GOOD, line, GOOD)], prober())
    assert taken.prompts.prompts() == 2
    (skipped,) = [one for one in taken.skipped if one.path.startswith("requests.jsonl")]
    assert skipped.path == "requests.jsonl:2"
    assert 0 < len(skipped.reason) <= 200
    assert skipped.reason.isprintable()
    return skipped.reason


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com/a.png", "HTTPS://example.com/a.png", "ftp://h/a", "gs://b/a"),
        *("http://169.254.169.254/latest", "http://[::1]/a", "ws://h", "rtsp://h/a", "tcp://h:1"),
        *("http+unix://s/a", "file://example.com/a.png", "file://127.0.0.1/a.png"),
    ],
)
def test_no_host_is_asked(pictures: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    why = between_good_ones(pictures, json.dumps(naming("a.png", url)).encode())
    assert why.startswith(("remote URL", "vLLM does not load ", "file URL with a host: "))


@pytest.mark.parametrize(
    "line",
    [
        *(b"\0", b"\0" * 4096, b"\xff\xfe{\0}\0", b'{"messages": "\0"}', GOOD + b"\0", GOOD + GOOD),
        *(b"null", b"true", b"1", b"NaN", b'"words"', b"[[]]", b"9" * 5000, b"-", b"{" * 9999),
        *(b'{"messages": null}', b'{"messages": {}}', b'{"messages": [null]}'),
        *(b'{"messages": [[]]}', b'{"messages": [{"role": 1}]}', b'{"body": [1]}'),
        *(b'{"messages": [{"role": "u", "content": {}}]}', b'{"messages": [{}], "messages": 7}'),
        b'{"messages": [{"role": "u", "content": "\\ud800"}]}',
        *(json.dumps(naming(url)).encode() for url in NO_URLS),
        json.dumps(naming("data:image/png;base64," + "A" * 400)).encode(),
        b'{"messages": [%s]}' % b",".join([b"{}"] * MIB),
    ],
)
def test_a_damaged_line_costs_only_itself(pictures: Path, line: bytes) -> None:
    assert between_good_ones(pictures, line)


@pytest.mark.parametrize(
    "text",
    [
        *(b"\xed\xa0\x80", b"\xed\xb3\xbf.", b"\xed\xa0\xbd\xed\xb8\x80"),
        *(b"\xff", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe2\x82"),
    ],
)
def test_what_is_no_utf_8_is_no_request(pictures: Path, text: bytes) -> None:
    """Python's JSON reads half surrogate pairs written as bytes, but no writer can write them."""
    line = json.dumps({"messages": [{"role": "naming", "content": "|"}]}).encode()
    assert between_good_ones(pictures, line.replace(b"|", text)) == "not UTF-8"


@pytest.mark.parametrize("target", ["/dev/zero", ".", "nowhere", "requests.jsonl"])
def test_a_requests_file_that_is_no_file(tmp_path: Path, target: str) -> None:
    (tmp_path / "requests.jsonl").symlink_to(target)
    with pytest.raises(CorpusError, match=r"requests file (not found|is a folder)"):
        RequestsSource(tmp_path / "requests.jsonl", Reading(tmp_path))


READ = """
import json, sys
from pathlib import Path
from mmcalib.corpus.requests import Reading, RequestsSource
path = Path(sys.argv[1])
found = RequestsSource(path, Reading(path.parent / "scratch"))
read = [getattr(one, "reason", "good") for one in found.prompts()]
items = sum(1 for _ in found.items())
peak = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
print(json.dumps([read, items, int(peak[0].split()[1]) >> 10]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_long_lines_take_little_memory(pictures: Path) -> None:
    path = pictures / "requests.jsonl"
    start, end = json.dumps(naming("data:image/png;base64,|")).encode().split(b"|")
    with path.open("wb") as file:
        for size_mib in (100, 47):
            file.write(GOOD + b"\n" + start)
            for _ in range(size_mib):
                file.write(b"A" * MIB)
            file.write(end + b"\n")
        file.write(GOOD + b"\n" + b"[" * 100 * MIB)
    done = run_python("-c", READ, path, timeout=60, check=True)
    read, items, rss_mib = json.loads(done.stdout)
    long = "line is longer than 48 MiB"
    assert read == ["good", long, "good", "good", "good", long]
    assert items == 2
    assert rss_mib < 300
