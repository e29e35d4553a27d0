"""A stand-in chat template: the model's turn markers and placeholders, in our own words."""

from __future__ import annotations

from collections.abc import Mapping


def chat_template(chat: Mapping[str, str], placeholders: Mapping[str, str]) -> str:
    """Jinja for messages whose content is a string, or also a list of parts (`content: openai`).

    vLLM tells the two apart by whether the template walks through the content. `{role}` in a turn
    marker is the message's role; `{n}` in a placeholder counts the items of its modality. Without
    `assistant_start` and `assistant_end` the assistant's turns are marked as all others.
    """
    body = _parts(placeholders) if chat["content"] == "openai" else "{{ message['content'] }}"
    start, end = chat["turn_start"], chat["turn_end"]
    answer_start = chat.get("assistant_start", start.replace("{role}", "assistant"))
    return "".join(
        (
            "{% set count = namespace(image=0, video=0, audio=0) %}",
            _marker(chat.get("start", "")),
            "{% for message in messages %}",
            _by_role(start, chat.get("assistant_start", start)),
            body,
            _by_role(end, chat.get("assistant_end", end)),
            "{% endfor %}",
            f"{{% if add_generation_prompt %}}{_marker(answer_start)}{{% endif %}}",
        )
    )


def _by_role(others: str, assistant: str) -> str:
    if others == assistant:
        return _marker(others)
    return (
        f"{{% if message['role'] == 'assistant' %}}{_marker(assistant)}"
        f"{{% else %}}{_marker(others)}{{% endif %}}"
    )


def _marker(text: str) -> str:
    """The marker as Jinja; newlines are printed, since one that follows a block is trimmed."""
    return text.replace("\n", "{{ '\\n' }}").replace("{role}", "{{ message['role'] }}")


def _parts(placeholders: Mapping[str, str]) -> str:
    branches = "".join(
        f"{{% {'elif' if index else 'if'} {_is(modality)} %}}"
        f"{{% set count.{modality} = count.{modality} + 1 %}}"
        + placeholder.replace("{n}", f"{{{{ count.{modality} }}}}")
        for index, (modality, placeholder) in enumerate(placeholders.items())
    )
    return "".join(
        (
            "{% if message['content'] is string %}{{ message['content'] }}",
            "{% else %}{% for part in message['content'] %}",
            branches,
            "{% elif 'text' in part %}{{ part['text'] }}{% endif %}",
            "{% endfor %}{% endif %}",
        )
    )


def _is(modality: str) -> str:
    """The Jinja test for a part that is an item of the modality, however the client spells it."""
    return f"part['type'] == '{modality}' or '{modality}' in part or '{modality}_url' in part"
