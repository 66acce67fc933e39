"""Chat templates of the model families, as a table: control pieces by name, plain text in between."""

import json
import re
from dataclasses import dataclass

from pasta_jax.errors import PastaError


@dataclass(frozen=True)
class Family:
    """A turn is `open` role `gap` text `close` `after`; `open`, `close` and `header` are control pieces."""

    name: str
    bos: str | None
    eos: str
    open: str
    close: str
    header: str | None = None  # the control piece after the role, if any
    gap: str = "\n"
    after: str = "\n"
    assistant: str = "assistant"  # the family's name of this role
    strips: bool = True  # whitespace around a text is dropped
    system: str | None = None  # the default system message
    system_turn: bool = True  # False: the system message is prepended to the first user's text

    @property
    def marks(self) -> set[str]:
        """The control pieces that a vocabulary of this family has."""
        return {piece for piece in (self.bos, self.eos, self.open, self.close, self.header) if piece}


FAMILIES = (
    Family("gemma", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", assistant="model", system_turn=False),
    Family(
        "smollm2",
        None,
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        strips=False,
        system="You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    ),
    Family(
        "llama3",
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|eot_id|>",
        header="<|end_header_id|>",
        gap="\n\n",
        after="",
    ),
)


def conversation(family: Family, messages: list[tuple[str, str]]) -> list[tuple[bool, str]]:
    """The conversation up to the assistant's opening, as (is a control piece, text); no two texts are adjacent."""
    turns = _turns(family, messages)
    parts = [(True, family.bos)] if family.bos else []
    for role, text in turns:
        parts += [*_opening(family, role, text), (True, family.close)]
        parts += [(False, family.after)] if family.after else []
    return parts + _opening(family, "assistant", "")


def _opening(family: Family, role: str, text: str) -> list[tuple[bool, str]]:
    role = family.assistant if role == "assistant" else role
    if family.header is None:
        return [(True, family.open), (False, role + family.gap + text)]
    return [(True, family.open), (False, role), (True, family.header), (False, family.gap + text)]


def _turns(family: Family, messages: list[tuple[str, str]]) -> list[tuple[str, str]]:
    system = family.system
    if messages and messages[0][0] == "system":
        (_, system), messages = messages[0], messages[1:]
    for index, (role, _) in enumerate(messages):
        if role != ("user", "assistant")[index % 2]:
            raise PastaError(
                f"message {index + 1} (not counting the system message) has the role {role!r}; "
                "alternate user and assistant, user first"
            )
    if len(messages) % 2 == 0:
        raise PastaError(f"the conversation of {len(messages)} messages has no open question; end it with a user's")
    turns = [(role, text.strip() if family.strips else text) for role, text in messages]
    if system is None:
        return turns
    if family.system_turn:
        return [("system", system.strip() if family.strips else system), *turns]
    return [("user", f"{system}\n\n{turns[0][1]}"), *turns[1:]]


_JINJA = """\
{%- if messages and messages[0]['role'] == 'system' -%}
{%- set system, turns = messages[0]['content'], messages[1:] -%}
{%- else -%}
{%- set system, turns = SYSTEM, messages -%}
{%- endif -%}
{{- BOS -}}
{%- if SYSTEM_TURN and system is not none -%}
{{- OPEN + 'system' + HEADER + GAP + TRIM(system) + CLOSE + AFTER -}}
{%- endif -%}
{%- for turn in turns -%}
{%- set text = TRIM(turn['content']) -%}
{%- if not SYSTEM_TURN and loop.first and system is not none -%}
{%- set text = system + BREAK + text -%}
{%- endif -%}
{{- OPEN + (ASSISTANT if turn['role'] == 'assistant' else turn['role']) + HEADER + GAP + text + CLOSE + AFTER -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- OPEN + ASSISTANT + HEADER + GAP -}}
{%- endif -%}
"""


def jinja_template(family: Family) -> str:
    """The family's template in Jinja, for other tools: their ids of a conversation are those of `Tokenizer.chat`."""
    constants = {
        "SYSTEM_TURN": "true" if family.system_turn else "false",
        "SYSTEM": "none" if family.system is None else json.dumps(family.system),
        "BOS": json.dumps(family.bos or ""),
        "OPEN": json.dumps(family.open),
        "CLOSE": json.dumps(family.close),
        "HEADER": json.dumps(family.header or ""),
        "GAP": json.dumps(family.gap),
        "AFTER": json.dumps(family.after),
        "ASSISTANT": json.dumps(family.assistant),
        "BREAK": json.dumps("\n\n"),
    }
    text = re.sub(r"TRIM\((.*?)\)", r"(\1 | trim)" if family.strips else r"(\1)", _JINJA)
    return re.sub("|".join(constants), lambda match: constants[match[0]], text)
