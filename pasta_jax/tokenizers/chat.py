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
    open: str  # empty in a family of one model, whose template is its own
    close: str
    header: str | None = None  # the control piece after the role, if any
    gap: str = "\n"
    after: str = "\n"
    assistant: str = "assistant"  # the family's name of this role
    strips: bool = True  # whitespace around a text is dropped
    others: tuple[str, ...] = ()  # control pieces that tell it from another family
    system: str | None = None  # the default system message
    system_turn: bool = True  # False: a system message is prepended to the next user's text, and users alternate

    @property
    def marks(self) -> set[str]:
        """The control pieces that a vocabulary of this family has."""
        return {piece for piece in (self.bos, self.eos, self.open, self.close, self.header, *self.others) if piece}


FAMILIES = (
    Family("gemma", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", assistant="model", system_turn=False),
    Family(
        "smollm2",
        None,
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        strips=False,
        others=("<repo_name>",),
        system="You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    ),
    Family("chatml", None, "<|endoftext|>", "<|im_start|>", "<|im_end|>", strips=False),  # Qwen, and many others
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
    if not messages or messages[-1][0] != "user":
        raise PastaError(f"the conversation of {len(messages)} messages has no open question; end it with a user's")
    if family.system is not None and messages[0][0] != "system":
        messages = [("system", family.system), *messages]
    stripped = [(role, text.strip() if family.strips else text) for role, text in messages]
    if family.system_turn:
        return stripped
    return alternating([(role, text if role == "system" else text.strip()) for role, text in messages])


def alternating(messages: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Turns for a template that knows users and answers in turn: neighbours of one role become one, of paragraphs."""
    turns: list[tuple[str, str]] = []
    for role, text in messages:
        speaker = "user" if role == "system" else role
        if turns and turns[-1][0] == speaker and speaker in ("user", "assistant"):
            turns[-1] = speaker, f"{turns[-1][1]}\n\n{text}"
        else:
            turns.append((speaker, text))
    if turns[0][0] != "user":
        raise PastaError("message 1: an answer; in this model's template, a user's message comes first")
    return turns


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
    names = ("bos", "open", "close", "header", "gap", "after", "assistant")
    constants = {
        "SYSTEM_TURN": json.dumps(family.system_turn),  # before SYSTEM, which is a part of it
        "SYSTEM": "none" if family.system is None else json.dumps(family.system),
        "BREAK": json.dumps("\n\n"),
    } | {name.upper(): json.dumps(getattr(family, name) or "") for name in names}
    text = re.sub(r"TRIM\((.*?)\)", r"(\1 | trim)" if family.strips else r"(\1)", _JINJA)
    return re.sub("|".join(constants), lambda match: constants[match[0]], text)
