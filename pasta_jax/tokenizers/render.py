"""Render a chat template, which is somebody's code, in a process of its own with little time and memory.

python -I render.py reads {"template", "tokens", "conversations", "most"} and writes the texts, null where the template
raises; of a text longer than `most` characters, one more than those.
"""

import datetime
import json
import resource
import sys
from typing import Any

from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS, BYTES = 5, 1 << 30


def refuse(message: str) -> None:
    """What templates call to refuse a conversation."""
    raise ValueError(message)


def as_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
    """As in transformers; Jinja's own escapes what HTML would read."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


class Generation(Extension):
    """{% generation %} … {% endgeneration %}, which marks what is learnt from in transformers: its content, here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        """What stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def main() -> None:
    """Answer the request on standard input."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    asked = json.load(sys.stdin)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: f"{datetime.date.today():{form}}"}
    environment.filters["tojson"] = as_json
    template = environment.from_string(asked["template"])
    texts = []
    for conversation in asked["conversations"]:
        try:
            given = {"tools": None, "documents": None, "add_generation_prompt": True} | asked["tokens"] | conversation
            text = template.render(given)
            texts.append(text[: asked["most"] + 1])
        except Exception:  # of any kind: the template's code
            texts.append(None)
    json.dump(texts, sys.stdout)


if __name__ == "__main__":
    main()
