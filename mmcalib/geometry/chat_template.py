"""A stand-in chat template: the model's turn markers and placeholders, in our own words."""

from __future__ import annotations

from collections.abc import Mapping


def chat_template(chat: Mapping[str, str], placeholders: Mapping[str, str]) -> str:
    """Jinja for messages whose content is a string, or also a list of parts (`content: openai`).

    vLLM tells the two apart by whether the template walks through the content. `{n}` in a
    placeholder counts the items of its modality. Newlines are printed, since transformers trims
    those that follow a block.
    """
    body = _parts(placeholders) if chat["content"] == "openai" else "{{ message['content'] }}"
    start, end = chat["turn_start"], chat["turn_end"]
    return "".join(
        (
            "{% set count = namespace(image=0, video=0, audio=0) %}",
            chat.get("start", ""),
            "{% for message in messages %}",
            f"{start}{{{{ message['role'] + '\\n' }}}}{body}{end}{{{{ '\\n' }}}}",
            "{% endfor %}",
            "{% if add_generation_prompt %}",
            f"{start}{{{{ 'assistant\\n' }}}}",
            "{% endif %}",
        )
    )


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
