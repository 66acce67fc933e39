"""A model's own chat template: its Jinja source, and the texts around messages that rendering it shows.

The source is rendered once, on a few conversations, in a process of its own (render.py). If its texts aren't those of
the model's family, what stands around the messages becomes a Template, so that a message can never become a control
piece. A source that does anything else with messages than to place them between fixed texts is refused.
"""

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import MIB, read_json
from pasta_jax.tokenizers import render
from pasta_jax.tokenizers.chat import Family, alternating, conversation, jinja_template

NAME, ARGUMENTS, RESULT = KINDS = ("name", "arguments", "result")  # of messages, beside roles; see tools.py
EDGE = ""  # the kind of what is before a conversation, and of what is after it
FILE, CONFIG, NAMES = "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"
MOST_BYTES = 1 * MIB  # of a source
MOST_RENDERED = 1 << 16  # characters of a short conversation
# Messages that no template has: their places in the rendered text are those of the messages.
_SYSTEM, *_TEXTS = (f"qzx{letter}xzq" for letter in "sabcde")
_BEFORE, _AFTER = "\n\t", "\t\n"  # whitespace around messages
# What a template leaves of it, and the arguments of the function of str that does.
_LEFT = {_BEFORE: None, "\t": ("lstrip", "\n"), "": ("lstrip", None)}
_RIGHT = {_AFTER: None, "\t": ("rstrip", "\n"), "": ("rstrip", None)}
END_OF_THOUGHT = "</think>"
THOUGHT = f"<think>\nqzxtxzq\n{END_OF_THOUGHT}\n\n"  # as models write it before an answer
_ROLES = ("user", "assistant", "user", "assistant", "user")
_TURNS = list(zip(_ROLES, _TEXTS, strict=True))
_PROBES = (
    _TURNS,
    _TURNS[:1],
    [("system", _SYSTEM), *_TURNS],
    [("system", _SYSTEM), *_TURNS[:1]],
    [(role, f"{_BEFORE}{text}{_AFTER}") for role, text in _TURNS],
    [("system", f"{_BEFORE}{_SYSTEM}{_AFTER}"), *_TURNS[:1]],
    [(role, f"{THOUGHT}{text}" if role == "assistant" else text) for role, text in _TURNS],
)


def in_folder(folder: Path) -> tuple[str | None, dict[str, str]]:
    """The source in a model's folder, if it has one, and the pieces that it may name."""
    config = _fields(folder / CONFIG)
    if "added_tokens_decoder" not in config:  # older tools kept the names in a file of their own
        config |= _fields(folder / NAMES)
    more = config.get("extra_special_tokens")
    named = (more if isinstance(more, dict) else {}) | config
    named = {name: one.get("content") if isinstance(one, dict) else one for name, one in named.items()}
    tokens = {name: one for name, one in named.items() if name.endswith("_token") and isinstance(one, str)}
    if (folder / FILE).is_file():
        with (folder / FILE).open("rb") as file:
            return file.read(4 * MOST_BYTES + 4).decode("utf-8", "replace"), tokens  # enough to see that it is too long
    source = config.get("chat_template")
    if isinstance(source, list):  # several, by name
        defaults = (one.get("template") for one in source if isinstance(one, dict) and one.get("name") == "default")
        source = next(defaults, None)
    return source if isinstance(source, str) else None, tokens


FLAGS = "lstrip", "rstrip", "single_word"


def strips_in(folder: Path) -> dict[str, dict[str, bool]]:
    """Whether pieces swallow blanks or are whole words, by tokenizer_config.json, which wins over tokenizer.json."""
    added = _fields(folder / CONFIG).get("added_tokens_decoder")
    ones = [one for one in added.values() if isinstance(one, dict)] if isinstance(added, dict) else []
    return {str(one.get("content")): {name: one.get(name) is True for name in FLAGS} for one in ones}


def _fields(path: Path) -> dict[str, Any]:
    return read_json(path, dict, 8 * MIB, "copy the file that came with the model") if path.is_file() else {}


@dataclasses.dataclass(frozen=True)
class Template:
    """The text between two neighbours of a conversation, by their kinds; control pieces are spelled out."""

    between: Mapping[tuple[str, str], str]
    strips: frozenset[tuple[str, str, str | None]]  # kinds whose texts lose what a function of str takes: its arguments
    # Whether earlier answers lose what was thought before them, and what is then stripped from their beginning.
    forgets: str | None = None

    def parts(self, messages: Sequence[tuple[str, str]]) -> list[tuple[bool, str]]:
        """The conversation up to the assistant's opening, as (is the template's, text)."""
        if not messages or (messages[-1][0], EDGE) not in self.between:
            end = "a user's message or a result" if (RESULT, EDGE) in self.between else "a user's"
            raise PastaError(f"the conversation of {len(messages)} messages has no open question; end it with {end}")
        first = int(messages[0][0] == "system")  # of the turns
        if first and (EDGE, "system") not in self.between:
            raise PastaError("a system message: the model's template has no place for one before questions; drop it")
        last = max((number for number, (kind, _) in enumerate(messages) if kind == "user"), default=0)
        shown = [(kind, self.shown(kind, text, number < last)) for number, (kind, text) in enumerate(messages)]
        parts, former = [], EDGE
        for kind, text in [*shown[:first], *alternating(shown[first:])]:
            parts += [(True, self.between[former, kind]), (False, text)]
            former = kind
        return [*parts, (True, self.between[former, EDGE])]

    def shown(self, kind: str, text: str, is_earlier: bool = False) -> str:
        """What is read of a text; `is_earlier`: than the last question."""
        if kind == ARGUMENTS:
            return as_templates_write(text)
        if kind == "assistant" and is_earlier and self.forgets is not None and END_OF_THOUGHT in text:
            text = text.rpartition(END_OF_THOUGHT)[2].lstrip(self.forgets)
        for _, how, characters in (one for one in self.strips if one[0] == kind):
            text = getattr(text, how)(characters)
        return text


def as_templates_write(arguments: str) -> str:
    """JSON as models have read it in training, whatever a client's escapes and blanks; other text as it is."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def learned(source: str, tokens: Mapping[str, str], family: Family, place: str) -> Template | None:
    """The template that a source renders; None: that of the family, if it has one."""
    if family.open and source == jinja_template(family):
        return None
    return _learned(source, tuple(sorted(tokens.items())), family, place)


@functools.lru_cache(maxsize=8)
def _learned(source: str, tokens: tuple[tuple[str, str], ...], family: Family, place: str) -> Template | None:
    turns = [{"messages": [{"role": role, "content": text} for role, text in messages]} for messages in _PROBES]
    texts = rendered(source, dict(tokens), turns, place)
    if texts[0] is None or texts[1] is None or texts[4] is None:
        raise PastaError(f"{place}: it raises an error for plain questions; correct it")
    probes = [(messages, text) for messages, text in zip(_PROBES, texts, strict=True) if text is not None]
    if family.open and all(
        "".join(part for _, part in conversation(family, messages)) == text for messages, text in probes
    ):
        return None
    plain, _, *with_system, padded, padded_system, thoughtful = texts
    start, to_assistant, to_user, *_, opening = _around(plain, _TEXTS, place)
    first, asked, answered, *_, last = _around(padded, _TEXTS, place)
    user = first.removeprefix(start), last.removesuffix(opening)
    assistant = asked.removeprefix(user[1] + to_assistant), answered.removesuffix(to_user + user[0])
    strips = _strips("user", *user, place) | _strips("assistant", *assistant, place)
    between = {
        (EDGE, "user"): start,
        ("user", "assistant"): to_assistant,
        ("assistant", "user"): to_user,
        ("user", EDGE): opening,
    }
    # Mistral's older templates place it in the last question, where it would move with every turn: no place, for us.
    # Others drop it.
    shows = None not in (*with_system, padded_system) and all(_SYSTEM in text for text in (*with_system, padded_system))
    if shows and with_system[0].find(_SYSTEM) < with_system[0].find(_TEXTS[0]):
        before, after, *_ = _around(with_system[0], [_SYSTEM, *_TEXTS], place)
        between |= {(EDGE, "system"): before, ("system", "user"): after}
        first, asked, *_ = _around(padded_system, [_SYSTEM, _TEXTS[0]], place)
        strips |= _strips("system", first.removeprefix(before), asked.removesuffix(after), place)
    forgets = None
    if thoughtful is not None and THOUGHT not in thoughtful:
        forgets = "" if f"\n\n{_TEXTS[1]}" in thoughtful and f"\n\n{_TEXTS[1]}" not in plain else "\n"
    template = Template(between, frozenset(strips), forgets)
    for messages, text in probes:
        is_asked = (EDGE, "system") in between or messages[0][0] != "system"
        if is_asked and "".join(part for _, part in template.parts(messages)) != text:
            raise PastaError(f"{place}: {_MORE}")
    return template


def around_answer(source: str, tokens: Mapping[str, str], place: str) -> tuple[str, str, str]:
    """The texts before, between and after a question and its answer, with nothing asked for: as reward models read."""
    turns = [{"role": role, "content": text} for role, text in _TURNS[:2]]
    [text] = rendered(source, tokens, [{"messages": turns, "add_generation_prompt": False}], place)
    if text is None:
        raise PastaError(f"{place}: it raises an error for an answered question; correct it")
    start, between, end = _around(text, _TEXTS[:2], place)
    return start, between, end


_MORE = "it does more than to place messages between fixed texts; simplify it"


def _strips(role: str, left: str, right: str, place: str) -> set[tuple[str, str, str | None]]:
    """What a role's texts lose, by what is left of the whitespace around them."""
    if left not in _LEFT or right not in _RIGHT:
        raise PastaError(f"{place}: {_MORE}")
    return {(role, *how) for how in (_LEFT[left], _RIGHT[right]) if how is not None}


def _around(text: str, messages: Sequence[str], place: str) -> list[str]:
    """The texts before, between and after messages."""
    parts = []
    for message in messages:
        if text.count(message) != 1:
            raise PastaError(f"{place}: it doesn't place every message once; simplify it")
        before, _, text = text.partition(message)
        parts.append(before)
    return [*parts, text]


def rendered(
    source: str, tokens: Mapping[str, str], conversations: Sequence[Mapping[str, Any]], place: str
) -> list[str | None]:
    """The texts of conversations, each what transformers would give the template; None for one that it refuses."""
    if len(source) > MOST_BYTES:
        raise PastaError(f"{place}: it has more than {MOST_BYTES:,} characters; shorten it")
    asked = json.dumps({"template": source, "tokens": tokens, "conversations": conversations, "most": MOST_RENDERED})
    command = [sys.executable, "-P", render.__file__]  # not -I: jinja2 may be in the user's own site or PYTHONPATH
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=4 * render.SECONDS)
        texts = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise PastaError(
            f"{place}: it can't be rendered, or not within {render.SECONDS} s and 1 GiB; correct it"
        ) from None
    if any(text is not None and len(text) > MOST_RENDERED for text in texts):
        raise PastaError(f"{place}: it renders more than {MOST_RENDERED:,} characters; shorten it")
    return texts
