"""Chat templates with one habit each, as published models have them, in a model's own marks."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from mmcalib.models.catalogue import Geometry
from mmcalib.models.checkpoint import chat_template

_WORDS = (
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
)
_FILE = Path(__file__).with_name("habits.toml")
# Habit → template; `_slots` and `_WORDS` fill what stands in angle brackets.
HABITS: Mapping[str, str] = {
    habit: "".join(map(str.strip, table["template"].splitlines()))
    for habit, table in tomllib.loads(_FILE.read_text("utf-8")).items()
}


def draw_habits(keys: Sequence[str], seed: int) -> dict[str, str]:
    """A habit for each subject, all of them in turn."""
    habits = Random(seed).sample(list(HABITS), len(HABITS))
    return {key: habits[number % len(habits)] for number, key in enumerate(keys)}


def template(habit: str, geometry: Geometry) -> str:
    """Jinja with the model's own marks of turns and items."""
    chat, items = geometry.values("chat"), geometry.values("placeholders")
    numbered = {kind: f"{kind.title()} {{n}}: {mark}" for kind, mark in items.items()}
    slots = {**_slots(chat, items), "words": _WORDS, "numbered": _slots(chat, numbered)["media"]}
    text = HABITS[habit]
    for name, slot in slots.items():
        text = text.replace(f"<{name}>", slot)
    return text


def _slots(chat: Mapping[str, str], items: Mapping[str, str]) -> dict[str, str]:
    """The parts of the model's bundled template, by name."""
    plain = {name: text for name, text in chat.items() if name not in ("media_roles", "alternates")}
    whole = chat_template({**plain, "content": "openai"}, items)
    start, turn = whole.split("{% for message in messages %}", 1)
    turn, answer = turn.rsplit("{% endfor %}", 1)
    begins, last = turn.index("{% if message['content'] is string %}"), "{% endfor %}{% endif %}"
    ends = turn.rindex(last) + len(last)
    media = turn[begins:ends]
    return {
        "start": start,
        "open": turn[:begins],
        "media": media,
        "close": turn[ends:],
        "answer": answer,
    }
