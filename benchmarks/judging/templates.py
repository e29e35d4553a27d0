"""Chat templates with one habit each, as published models have them, in a model's own marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from mmcalib.models.catalogue import Geometry
from mmcalib.models.checkpoint import chat_template

_WORDS = (
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
)
_EACH = "<start>{% for message in messages %}<open><media><close>{% endfor %}<answer>"
# Habit → template; `_slots` and `_WORDS` fill what stands in angle brackets.
HABITS: Mapping[str, str] = {
    # Qwen3-VL.
    "media of user and tool only": (
        "<start>{% for message in messages %}<open>"
        "{% if message['role'] in ['user', 'tool'] %}<media>{% else %}<words>{% endif %}"
        "<close>{% endfor %}<answer>"
    ),
    # Gemma 3, Mistral.
    "users and assistants in turn": (
        "<start>{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}"
        "{% else %}{% set turns = messages %}{% endif %}{% for message in turns %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
        "<open><media><close>{% endfor %}<answer>"
    ),
    # Gemma 3.
    "system in the first turn": (
        "<start>{% if messages[0]['role'] == 'system' %}"
        "{% set head = messages[0]['content'] if messages[0]['content'] is string "
        "else messages[0]['content'][0]['text'] %}{% set turns = messages[1:] %}"
        "{% else %}{% set head = '' %}{% set turns = messages %}{% endif %}"
        "{% for message in turns %}<open>"
        "{% if loop.first and head %}{{ head + '\\n\\n' }}{% endif %}"
        "<media><close>{% endfor %}<answer>"
    ),
    # Qwen2-Audio; Qwen2.5-VL with `add_vision_id`.
    "items numbered": _EACH.replace("<media>", "<numbered>"),
    # InternVL, DeepSeek.
    "content as a string": (
        "<start>{% for message in messages %}<open>{{ '' + message['content'] }}<close>"
        "{% endfor %}<answer>"
    ),
    # Qwen2.5, Hermes.
    "tools in the system turn": (
        "<start>{% if tools %}{% set message = {'role': 'system'} %}<open>"
        "{% if messages[0]['role'] == 'system' and messages[0]['content'] is string %}"
        "{{ messages[0]['content'] + '\\n\\n' }}{% endif %}"
        "# Tools{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}<close>{% endif %}"
        "{% for message in messages %}"
        "{% if not (tools and loop.first and message['role'] == 'system') %}"
        "<open><media>{% for call in message['tool_calls'] or [] %}"
        "{{ '\\n<tool_call>' }}{{ call['function']['name'] }}"
        "{{ call['function']['arguments'] | tojson }}{% endfor %}<close>"
        "{% endif %}{% endfor %}<answer>"
    ),
    # Qwen2-VL.
    "a system turn by default": (
        "<start>{% for message in messages %}"
        "{% if loop.first and message['role'] != 'system' %}{% set given = message %}"
        "{% set message = {'role': 'system'} %}<open>You are a helpful assistant.<close>"
        "{% set message = given %}{% endif %}<open><media><close>{% endfor %}<answer>"
    ),
    # Qwen3, GLM-4.1V.
    "thoughts of earlier turns stripped": (
        "<start>{% set last = namespace(user=-1) %}{% for message in messages %}"
        "{% if message['role'] == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
        "{% for message in messages %}<open>"
        "{% if message['role'] == 'assistant' and message['content'] is string %}"
        "{% if loop.index0 > last.user and message['reasoning_content'] is string %}"
        "{{ '<think>\\n' + message['reasoning_content'] + '\\n</think>\\n\\n' }}{% endif %}"
        "{{ message['content'].split('</think>')[-1].lstrip('\\n') }}"
        "{% else %}<media>{% endif %}<close>{% endfor %}<answer>"
    ),
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
