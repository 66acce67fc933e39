"""Calls of functions and their results in a conversation: as the model's own chat template places them, or in words.

They are (kind, text) pairs among those of roles: after a question, an answer or results, NAME and ARGUMENTS of each
call; then the RESULT of each, in the order of the calls. A template is learned from what it renders (template.py): the
text between two neighbours may depend on their kinds alone. So none of them can ever become a control piece.
Which functions there are is not said: where it was, a model wrote calls instead of text (log of 2026-11-26).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pasta_jax.errors import PastaError
from pasta_jax.tokenizers.template import ARGUMENTS, EDGE, NAME, RESULT, Template, rendered

_SPEAKERS = {ARGUMENTS: "assistant", RESULT: "user"}  # in words
# What a template is asked to render, a letter for each message; c is a call.
_PROBES = ("u", "uau", "suau", "ucr", "succrru", "uacrcraucccrrracru")
_LETTERS = {"s": "system", "u": "user", "a": "assistant", "r": RESULT}
_MARK = "qzx"  # in no template


def require_order(messages: Sequence[tuple[str, str]]) -> None:
    """Refuse calls without arguments or results, results without calls, and other kinds than these and roles."""
    waiting, former = 0, ""
    for number, (kind, _) in enumerate([*messages, ("user", "")], start=1):
        if not {
            NAME: waiting == 0 or former == ARGUMENTS,
            ARGUMENTS: former == NAME,
            RESULT: waiting > 0 and former != NAME,
        }.get(kind, waiting == 0 and kind in ("system", "user", "assistant")):
            after = f"after {former!r}" if former else "at the beginning"
            raise PastaError(f"message {number}: {kind!r} {after}; each call needs name and arguments, then its result")
        waiting, former = waiting + (kind == NAME) - (kind == RESULT), kind


def in_words(messages: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same for a template that has no places for them: a call is said by the assistant, its result by the user."""
    turns: list[tuple[str, str]] = []
    names, former = list[str](), ""
    for kind, text in messages:
        if kind == NAME:
            names.append(text)
            continue
        if kind in _SPEAKERS:
            text = f"Call {names[-1]} with {text}" if kind == ARGUMENTS else f"{names.pop(0)} returned: {text}"
        speaker = _SPEAKERS.get(kind, kind)
        if turns and turns[-1][0] == speaker and (kind in _SPEAKERS or former in _SPEAKERS):
            turns[-1] = speaker, f"{turns[-1][1]}\n\n{text}"
        else:
            turns.append((speaker, text))
        former = kind
    return turns


def learned(source: str, tokens: Mapping[str, str], forgets: str | None, place: str) -> Template | None:
    """The template in a source that places calls and results between fixed texts; None: it doesn't."""
    if "tool" not in source:
        return None
    probes = [_probe(letters, is_padded) for letters in _PROBES for is_padded in (False, True)]
    try:
        texts = rendered(source, tokens, [{"messages": as_transformers(probe)} for probe in probes], place)
    except PastaError:
        return None
    if None in texts:
        return None
    strips = {kind for probe, text in zip(probes, texts, strict=True) for kind, one in probe if one not in text}
    between: dict[tuple[str, str], str] = {}
    for probe, text in zip(probes, texts, strict=True):
        former, rest = EDGE, text
        for kind, one in probe:
            gap, found, rest = rest.partition(one.strip() if kind in strips else one)
            if not found or between.setdefault((former, kind), gap) != gap:
                return None
            former = kind
        if between.setdefault((former, EDGE), rest) != rest:
            return None
    if any(_MARK in gap for gap in between.values()):
        return None
    return Template(between, frozenset((kind, "strip", None) for kind in strips), forgets)


def _probe(letters: str, is_padded: bool) -> list[tuple[str, str]]:
    """A conversation of texts that no template has, perhaps with whitespace around them."""
    probe = []
    for number, letter in enumerate(letters):
        word = f"{_MARK}{number:03}xzq"
        if letter == "c":
            probe += [(NAME, word), (ARGUMENTS, json.dumps({word: [word]}))]
        else:
            probe.append((_LETTERS[letter], f" {word}\n" if is_padded else word))
    return probe


def as_transformers(messages: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """A conversation with calls as templates are given it."""
    turns: list[dict[str, Any]] = []
    waiting = []
    for number, (kind, text) in enumerate(messages):
        if kind == NAME:
            if not turns or turns[-1]["role"] != "assistant":
                turns.append({"role": "assistant", "content": ""})
            call = {"id": f"{_MARK}{number:06}", "type": "function", "function": {"name": text}}
            turns[-1].setdefault("tool_calls", []).append(call)
            waiting.append(call)
        elif kind == ARGUMENTS:
            waiting[-1]["function"]["arguments"] = json.loads(text)
        elif kind == RESULT:
            call = waiting.pop(0)
            name = call["function"]["name"]
            turns.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": text})
        else:
            turns.append({"role": kind, "content": text})
    return turns
