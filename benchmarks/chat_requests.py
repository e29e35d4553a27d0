"""Chat requests as OpenAI writes them, of a few kilobytes each, and the pictures that they name."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from empty_media import SEED, make

PICTURES = 3_000
_FOLDER = "pictures"

# How many pictures a request names, one as likely as the other: 2.9 on average.
_NAMED = (0, 1, 1, 1, 2, 2, 3, 4, 6, 9)
# Nearly all texts differ in length from others with the same pictures; with its pictures a request
# has 2.9 kB on average.
_SHORTEST, _LONGEST = 200, 4_700
_ANSWERS = (None, 64, 256, 1_024)

_WORDS = (
    "what",
    "does",
    "this",
    "picture",
    "show",
    "beside",
    "the",
    "other",
    "one",
    "and",
    "where",
)
_ACCENTED = ("façade", "naïve", "“quoted”", "東京")
_SPOKEN_BYTES = 1 << 20


def make_requests(folder: Path, requests: int, pictures: int = PICTURES) -> Path:
    """A JSONL file of so many requests in `folder`, beside the pictures. The same for the same
    numbers.
    """
    make(folder / _FOLDER, pictures, pictures, "image")
    names = [str(path.relative_to(folder)) for path in sorted((folder / _FOLDER).rglob("*.png"))]
    path = folder / "requests.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_lines(names, requests))
    return path


def _lines(names: list[str], requests: int) -> Iterator[str]:
    chance = random.Random(SEED)
    # A text is a piece of one of these; of three in four a reader sees that they are ASCII.
    plain = " ".join(chance.choices(_WORDS, k=_SPOKEN_BYTES // 5))
    accented = " ".join(chance.choices(_WORDS + _ACCENTED, k=_SPOKEN_BYTES // 5))
    for _ in range(requests):
        spoken = chance.choice((plain, plain, plain, accented))
        start = chance.randrange(len(spoken) - _LONGEST)
        text = spoken[start : start + chance.randint(_SHORTEST, _LONGEST)]
        pictures = chance.choices(names, k=chance.choice(_NAMED))
        yield json.dumps(_request(text, pictures, chance.choice(_ANSWERS)), ensure_ascii=False)
        yield "\n"


def _request(text: str, pictures: list[str], answer_tokens: int | None) -> dict[str, object]:
    images = [{"type": "image_url", "image_url": {"url": name}} for name in pictures]
    request: dict[str, object] = {
        "model": "served",
        "messages": [
            {"role": "system", "content": "Answer in one sentence."},
            {"role": "user", "content": [*images, {"type": "text", "text": text}]},
        ],
    }
    return request if answer_tokens is None else {**request, "max_tokens": answer_tokens}
