"""Malformed records and annotations, each with the reason for its refusal."""

import json

from pasta_jax.annotate import verify
from pasta_jax.data import pairs, sources
from pasta_jax.lang import program

FORMS = f"a record must have the fields {pairs.FORMATS}"
TURNS = "a conversation must have a question and its answer"
BEGINS = "a conversation must begin with a question and its answer"
EMPTY = "a question and its answer must not be empty"
OBJECT = "a record must be an object with fields"
PARTS = "a turn's content must be a string or parts of type text"
SPEAKER = "a turn's from must be human, gpt or system"
NUL = "a text must not contain NUL characters"


def conversation(*turns: str) -> str:
    """A record of a conversation; each turn is `speaker: text`."""
    messages = [dict(zip(("from", "value"), turn.split(": ", 1), strict=True)) for turn in turns]
    return json.dumps({"conversations": messages})


# Lines of a JSONL file: (description, line, reason)
LINES = [
    ("cut off in a text", b'{"instruction": "why", "output": "beca', sources.NOT_JSON),
    ("not JSON at all", b"why? because.", sources.NOT_JSON),
    ("two objects on a line", b'{"instruction": "a", "output": "b"} {"instruction": "a"}', sources.NOT_JSON),
    ("a raw NUL", b'{"instruction": "why\x00", "output": "because"}', sources.NOT_JSON),
    ("an escaped NUL", b'{"instruction": "why", "output": "be\\u0000cause"}', NUL),
    ("an escaped NUL in the question", b'{"instruction": "\\u0000why", "output": "because"}', NUL),
    ("half a surrogate pair", b'{"instruction": "why", "output": "because \\ud83d"}', sources.NOT_JSON),
    ("Latin-1", '{"instruction": "why", "output": "déjà vu"}'.encode("latin-1"), sources.NOT_JSON),
    ("UTF-16", '{"instruction": "why", "output": "because"}'.encode("utf-16-le"), sources.NOT_JSON),
    ("ten megabytes", b'{"instruction": "why", "output": "' + b"x" * 10_000_000 + b'"}', sources.TOO_LARGE),
    ("nested without end", b"[" * 200_000, sources.NOT_JSON),
    ("a list", b'["why", "because"]', OBJECT),
    ("a text", b'"why"', OBJECT),
    ("a number", b"42", OBJECT),
    ("null", b"null", OBJECT),
    ("no fields", b"{}", FORMS),
    ("other fields", b'{"q": "why", "a": "because"}', FORMS),
    ("no output", b'{"instruction": "why"}', "output is missing"),
    ("output null", b'{"instruction": "why", "output": null}', "output is missing"),
    ("output a number", b'{"instruction": "why", "output": 3}', "output must be a string"),
    ("output a list", b'{"instruction": "why", "output": ["because"]}', "output must be a string"),
    ("input an object", b'{"instruction": "why", "input": {}, "output": "because"}', "input must be a string"),
    ("instruction empty", b'{"instruction": "", "output": "because"}', EMPTY),
    ("output blank", b'{"instruction": "why", "output": " \\n\\t"}', EMPTY),
    ("no response", b'{"question": "why", "system_prompt": ""}', "response is missing"),
    ("conversations a text", b'{"conversations": "why"}', "conversations must be a list of turns"),
    ("conversations null", b'{"conversations": null}', "conversations must be a list of turns"),
    ("conversations empty", b'{"conversations": []}', TURNS),
    ("a question without an answer", conversation("human: why").encode(), TURNS),
    ("a system line alone", conversation("system: be brief", "human: why").encode(), TURNS),
    ("an answer first", conversation("gpt: because", "human: why").encode(), BEGINS),
    ("two questions", conversation("human: why", "human: why?").encode(), BEGINS),
    ("an unknown speaker", conversation("human: why", "parrot: because").encode(), SPEAKER),
    ("a turn that is a text", b'{"conversations": ["why", "because"]}', "a turn must be an object with fields"),
    (
        "a turn without a value",
        b'{"conversations": [{"from": "human"}]}',
        "a turn's value must be a string or parts of type text",
    ),
    ("a speaker null", b'{"conversations": [{"from": null, "value": "why"}]}', SPEAKER),
    (
        "messages of an unknown role",
        b'{"messages": [{"role": "x", "content": "why"}]}',
        "a turn's role must be user, assistant or system",
    ),
    (
        "an answer that calls a function",
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [{}]}]}',
        "an answer must not call functions",
    ),
    (
        "a history of texts",
        b'{"instruction": "a", "output": "b", "history": ["why", "because"]}',
        "history must be a list of questions, each in a list with its answer",
    ),
    ("content without parts", b'{"messages": [{"role": "user", "content": []}]}', PARTS),
    (
        "an image in a question",
        b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]}',
        PARTS,
    ),
    (
        "no answer chosen",
        b'{"conversations": [{"from": "human", "value": "a"}], "chosen": "b"}',
        "a turn must be an object with fields",
    ),
]


def at(text: str, line: int, column: int) -> str:
    """A place as refusals name it."""
    return f"{text}, line {line}, column {column}"


SOURCE = "Intro.\n- one two three four five\n- six seven eight nine ten\nEnd <async> of it."
PLAIN = SOURCE.replace("<async>", "<\\async>")  # as annotators receive it
LINE = "- <async topic='first'>one two three four five</async>"
# Annotations of SOURCE: (description, annotation, reason, place)
ANNOTATIONS = [
    ("a word changed", PLAIN.replace("two", "too"), verify.TEXT_CHANGED, at("source", 2, 8)),
    ("a word left out", PLAIN.replace(" three", ""), verify.TEXT_CHANGED, at("source", 2, 11)),
    ("cut off", PLAIN[:30], verify.TEXT_CHANGED, at("source", 2, 24)),
    ("nothing at all", "", verify.TEXT_CHANGED, at("source", 1, 1)),
    ("an end added", PLAIN + "\n", verify.TEXT_CHANGED, at("source", 4, 19)),
    ("in a fence", f"```\n{PLAIN}\n```", verify.TEXT_CHANGED, at("source", 1, 1)),
    ("a line break changed", PLAIN.replace("\n", "\r\n"), verify.TEXT_CHANGED, at("source", 1, 7)),
    ("a dash replaced", PLAIN.replace("- six", "– six"), verify.TEXT_CHANGED, at("source", 3, 1)),
    ("the source's own tag unescaped", SOURCE, program.ASYNC_BARE, at("annotation", 4, 5)),
    (
        "nested",
        "<async topic='a'>one <async topic='b'>two</async></async>",
        program.TAG_IN_CHUNK,
        at("annotation", 1, 22),
    ),
    ("a sync in a chunk", "<async topic='a'>one <sync/> two</async>", program.TAG_IN_CHUNK, at("annotation", 1, 22)),
    ("swapped tags", "one</async> two <async topic='a'>", program.END_ALONE, at("annotation", 1, 4)),
    ("never closed", "- <async topic='first'>one two three four five", program.ASYNC_OPEN, at("annotation", 1, 3)),
    ("closed twice", f"{LINE}</async>", program.END_ALONE, at("annotation", 1, 55)),
    ("no topic", LINE.replace(" topic='first'", ""), program.ASYNC_BARE, at("annotation", 1, 3)),
    ("an empty topic", LINE.replace("first", ""), program.TOPIC_EMPTY, at("annotation", 1, 3)),
    ("a blank topic", LINE.replace("first", "  "), program.TOPIC_EMPTY, at("annotation", 1, 3)),
    ("a topic of four words", LINE.replace("first", "the very first item"), program.TOPIC_LONG, at("annotation", 1, 3)),
    ("a chunk of four words", LINE.replace(" five", ""), program.CHUNK_SHORT, at("annotation", 1, 3)),
    ("an empty chunk", "<async topic='a'></async>", program.CHUNK_SHORT, at("annotation", 1, 1)),
    ("a promise", '<promise topic="a" tokens=2 />' + LINE, program.PROMISE_WRITTEN, at("annotation", 1, 1)),
    (
        "a chunk beyond the longest promise",
        f"<async topic='a'>{'word ' * 400}</async>",
        program.CHUNK_LONG,
        at("annotation", 1, 1),
    ),
]
