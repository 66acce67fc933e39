"""One record of any known form as a Pair of instruction and response, or what is wrong with it and where."""

import dataclasses
import hashlib
import json

SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
SPEAKERS |= {"bing": "assistant", "bard": "assistant", "model": "assistant", "chatbot": "assistant", "system": "system"}
QUESTIONS = {"turns", "instruction_id_list"}  # fields of records that may have no answer: MT-bench's, IFEval's
FORMS = "instruction and output, question and response, conversations, or messages"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A question and its answer, and where they come from."""

    id: str  # hash of the texts
    system: str  # empty: none
    instruction: str
    response: str
    source: str


@dataclasses.dataclass(frozen=True)
class Bad:
    """A record that can't be used. `reason` is one fixed sentence a kind, so that they can be counted."""

    place: str
    reason: str
    detail: str = ""


class _Wrong(Exception):
    """reason, detail."""


def pair_of(row: object, source: str, place: str) -> Pair | Bad:
    """Read one record. Several turns: the first question and its answer."""
    try:
        system, instruction, response = _texts(row)
        for name, text in (("system", system), ("instruction", instruction), ("response", response)):
            _check(name, text)
        if not instruction.strip() or (not response.strip() and not row.keys() & QUESTIONS):
            raise _Wrong("a question and its answer must not be empty")
    except _Wrong as wrong:
        return Bad(place, *wrong.args)
    return Pair(id_of(system, instruction, response), system, instruction, response, source)


def id_of(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def prompt_key(pair: Pair) -> str:
    """The same for prompts that differ in blanks and capitals alone."""
    return hashlib.sha256(" ".join(f"{pair.system} {pair.instruction}".split()).casefold().encode()).hexdigest()[:16]


def split_of(pair: Pair, validation_percent: int) -> str:
    """train or validation, by the prompt alone: the same prompt is never on both sides, whatever else there is."""
    return "validation" if int(prompt_key(pair), 16) % 100 < validation_percent else "train"


def _texts(row: object) -> tuple[str, str, str]:
    """(system, instruction, response)"""
    if not isinstance(row, dict):
        raise _Wrong("a record must be an object with fields", f"it is {_kind(row)}")
    if "chosen" in row and "conversations" in row:
        return _turns([*_list(row, "conversations"), row["chosen"]], "from", "value")
    if "conversations" in row:
        return _turns(_list(row, "conversations"), "from", "value")
    if "messages" in row:
        return _turns(_list(row, "messages"), "role", "content")
    if "turns" in row:  # MT-bench's questions have no answers
        turns = _list(row, "turns")
        if not turns:
            raise _Wrong("a conversation must have a question and its answer", "turns is empty")
        return "", _text({"turns": turns[0]}, "turns"), ""
    if "prompt" in row and "instruction_id_list" in row:  # nor have IFEval's
        return "", _text(row, "prompt"), ""
    if "question" in row:
        return _text(row, "system_prompt", ""), _text(row, "question"), _text(row, "response")
    if "instruction" in row:
        instruction, more = _text(row, "instruction"), _text(row, "input", "")
        return "", f"{instruction}\n\n{more}" if more.strip() else instruction, _text(row, "output")
    found = ", ".join(sorted(map(str, row))[:5])[:80] or "none"
    raise _Wrong(f"a record must have the fields {FORMS}", f"it has: {found}")


def _turns(turns: list, speaker: str, said: str) -> tuple[str, str, str]:
    spoken = []
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            raise _Wrong("a turn must be an object with fields", f"turn {number} is {_kind(turn)}")
        name, text = turn.get(speaker), turn.get(said)
        if not isinstance(name, str) or name not in SPEAKERS:
            raise _Wrong(f"a turn's {speaker} must be human, gpt or system", f"turn {number} has {ascii(name)[:40]}")
        if not isinstance(text, str):
            raise _Wrong(f"a turn's {said} must be a text", f"turn {number} has {_kind(text)}")
        spoken.append((SPEAKERS[name], text))
        if len(spoken) > 2:
            break
    system = spoken.pop(0)[1] if spoken and spoken[0][0] == "system" else ""
    if len(spoken) < 2:
        raise _Wrong("a conversation must have a question and its answer", f"it has {len(spoken)} turns")
    (first, question), (second, answer) = spoken[:2]
    if (first, second) != ("user", "assistant"):
        raise _Wrong("a conversation must begin with a question and its answer", f"it begins with {first}, {second}")
    return system, question, answer


def _list(row: dict, field: str) -> list:
    if not isinstance(row[field], list):
        raise _Wrong(f"{field} must be a list of turns", f"it is {_kind(row[field])}")
    return row[field]


def _text(row: dict, field: str, default: str | None = None) -> str:
    value = row.get(field, default)
    if value is None and default is not None:
        return default
    if value is None:
        raise _Wrong(f"{field} is missing", f"it has: {', '.join(sorted(map(str, row))[:5])[:80]}")
    if not isinstance(value, str):
        raise _Wrong(f"{field} must be a text", f"it is {_kind(value)}")
    return value


def _check(name: str, text: str) -> None:
    if "\0" in text:
        raise _Wrong("a text must not hold NUL characters", f"{name}, character {text.index(chr(0)) + 1}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Wrong(
            "a text must be valid Unicode", f"{name}, character {error.start + 1} is {text[error.start]!a}"
        ) from None


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
