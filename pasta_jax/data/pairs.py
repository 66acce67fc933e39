"""One record in any known format as a Pair of instruction and response, or the reason and place it is unreadable."""

import dataclasses

from pasta_jax.files import fingerprints

SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
SPEAKERS |= {"bing": "assistant", "bard": "assistant", "model": "assistant", "chatbot": "assistant", "system": "system"}
SPEAKERS |= {"developer": "system"}  # as OpenAI calls it
UNANSWERED = {"turns", "instruction_id_list"}  # fields of records that may lack an answer: MT-bench's, IFEval's
ANSWERS_OF = "answers of "  # begins the source of what launch.decode wrote
FORMATS = "instruction and output, question and response, prompt and text, conversations, or messages"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A question with its answer, and the source of both."""

    id: str  # hash of the texts
    system: str  # empty: none
    instruction: str
    response: str
    source: str
    origin: str = ""  # its place in the source

    @property
    def question(self) -> str:
        """What was asked, as judges read it: the system message stands first, if there is one."""
        return "\n\n".join(filter(None, (self.system, self.instruction)))

    @staticmethod
    def of(system: str, instruction: str, response: str, source: str, origin: str = "") -> "Pair":
        """A pair with its id."""
        return Pair(id_of(system, instruction, response), system, instruction, response, source, origin)


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """A record that can't be used. `reason` is one of a few fixed sentences, for counting."""

    place: str
    reason: str
    detail: str = ""


class _Invalid(Exception):
    """(reason, detail)"""


def parse_pair(row: object, source: str, place: str) -> Pair | Unreadable:
    """Parse one record. Of several turns, the first question and its answer."""
    try:
        system, instruction, response = _texts(row)
        system = system or system_beside(row)
        for name, text in (("system", system), ("instruction", instruction), ("response", response)):
            _check(name, text)
        if not instruction.strip() or (not response.strip() and not row.keys() & UNANSWERED):
            raise _Invalid("a question and its answer must not be empty")
    except _Invalid as error:
        return Unreadable(place, *error.args)
    if isinstance(row, dict) and isinstance(model := row.get("model"), str) and "text" in row:
        source = f"{ANSWERS_OF}{model}"  # not the file's name: what counts is whose words they are
    return Pair.of(system, instruction, response, source, place)


def id_of(*texts: str) -> str:
    """A hash of texts in order."""
    return fingerprints.of_data(texts)


def prompt_key(*texts: str) -> str:
    """A hash of a prompt's texts, the same for prompts that differ only in whitespace and case."""
    return fingerprints.of_bytes([" ".join(" ".join(texts).split()).casefold().encode()])


VALIDATION_PERCENT = 2  # of the prompts of a set, unless an annotation run states otherwise


def split_of(pair: Pair, validation_percent: int) -> str:
    """train or validation, by the question alone: it is never in both, under whatever system message."""
    return "validation" if int(prompt_key(pair.instruction), 16) % 100 < validation_percent else "train"


def _texts(row: object) -> tuple[str, str, str]:
    """(system, instruction, response)"""
    if not isinstance(row, dict):
        raise _Invalid("a record must be an object with fields", f"it is {_kind(row)}")
    if "chosen" in row and "conversations" in row:
        return _turns([*_list(row, "conversations"), row["chosen"]], "from", "value")
    if "conversations" in row:
        return _turns(_list(row, "conversations"), "from", "value")
    if "messages" in row:
        return _turns(_list(row, "messages"), "role", "content")
    if "turns" in row:  # MT-bench's questions have no answers
        turns = _list(row, "turns")
        if not turns:
            raise _Invalid("a conversation must have a question and its answer", "turns is empty")
        return "", _text({"turns": turns[0]}, "turns"), ""
    if "prompt" in row and "text" in row:  # answers that launch.decode wrote
        return "", _text(row, "prompt"), _text(row, "text")
    if "prompt" in row and "instruction_id_list" in row:  # IFEval's questions have no answers
        return "", _text(row, "prompt"), ""
    if "question" in row:
        return _text(row, "system_prompt", ""), _text(row, "question"), _text(row, "response")
    if "instruction" in row:
        if isinstance(earlier := row.get("history"), list) and earlier:  # of LLaMA-Factory: the turns before this one
            return "", *_exchange(earlier[0])
        asked = _text(row, "instruction"), _text(row, "input", "")
        return "", "\n\n".join(text for text in asked if text.strip()), _text(row, "output")
    names = ", ".join(sorted(map(str, row))[:5])[:80] or "none"
    raise _Invalid(f"a record must have the fields {FORMATS}", f"its fields: {names}")


def system_beside(row: dict[str, object]) -> str:
    """The system message in a field of its own, as LLaMA-Factory and others have it."""
    return system if isinstance(system := row.get("system"), str) else ""


def _turns(turns: list[object], speaker_field: str, text_field: str) -> tuple[str, str, str]:
    """(system, instruction, response) of a conversation."""
    messages = []
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            raise _Invalid("a turn must be an object with fields", f"turn {number} is {_kind(turn)}")
        name, text = turn.get(speaker_field), whole(turn.get(text_field))
        if not isinstance(name, str) or name not in SPEAKERS:
            names = "human, gpt or system" if speaker_field == "from" else "user, assistant or system"
            raise _Invalid(f"a turn's {speaker_field} must be {names}", f"turn {number} has {ascii(name)[:40]}")
        if calls(turn):
            raise _Invalid("an answer must not call functions", f"turn {number} does")
        if not isinstance(text, str):
            reason = f"a turn's {text_field} must be a string or parts of type text"
            raise _Invalid(reason, f"turn {number} has {_kind(text)}")
        messages.append((SPEAKERS[name], text))
        if len(messages) == 2 + (messages[0][0] == "system"):
            break
    system = messages.pop(0)[1] if messages and messages[0][0] == "system" else ""
    if len(messages) < 2:
        raise _Invalid("a conversation must have a question and its answer", f"it has {len(messages)} turns")
    (first, question), (second, answer) = messages[:2]
    if (first, second) != ("user", "assistant"):
        raise _Invalid("a conversation must begin with a question and its answer", f"it begins with {first}, {second}")
    return system, question, answer


def _exchange(turn: object) -> tuple[str, str]:
    """A question and its answer."""
    if not isinstance(turn, list) or len(turn) != 2 or not all(isinstance(text, str) for text in turn):
        raise _Invalid("history must be a list of questions, each in a list with its answer")
    return turn[0], turn[1]


def whole(content: object) -> object:
    """A turn's content: parts of type text, as OpenAI takes them, joined; anything else as it is."""
    if not isinstance(content, list) or not content:
        return content
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else content


def calls(turn: dict[str, object]) -> bool:
    """Whether a turn calls functions: then its text, if it has one, is no answer."""
    made = (turn.get(name) for name in ("tool_calls", "function_call"))
    return any(isinstance(value, list | dict) and value for value in made)


def _list(row: dict[str, object], field: str) -> list[object]:
    if not isinstance(row[field], list):
        raise _Invalid(f"{field} must be a list of turns", f"it is {_kind(row[field])}")
    return row[field]


def _text(row: dict[str, object], field: str, default: str | None = None) -> str:
    value = row.get(field, default)
    if value is None and default is not None:
        return default
    if value is None:
        raise _Invalid(f"{field} is missing", f"its fields: {', '.join(sorted(map(str, row))[:5])[:80]}")
    if not isinstance(value, str):
        raise _Invalid(f"{field} must be a string", f"it is {_kind(value)}")
    return value


def is_text(text: str) -> bool:
    """Whether a string can be used as a text."""
    try:
        _check("", text)
    except _Invalid:
        return False
    return True


def _check(name: str, text: str) -> None:
    if "\0" in text:
        raise _Invalid("a text must not contain NUL characters", f"{name}, character {text.index(chr(0)) + 1}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Invalid(
            "a text must be valid Unicode", f"{name}, character {error.start + 1} is {text[error.start]!a}"
        ) from None


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
