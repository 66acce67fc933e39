"""llama.cpp's server fills in fields: a request for each, held to a grammar; slots reuse what they have of a prompt."""

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pasta_jax.benchmark.clients import ANSWER_S
from pasta_jax.errors import PastaError

CHARACTER = r'[^"\\\x7F\x00-\x1F]'  # no escapes, which no fact needs
# What follows a value, so that the likeliest token `",` is allowed. A request ends before it, without a step for it.
AFTER = "[,}]"
# What a slot has of an earlier prompt, perhaps the same text's in another way, is no part of what is measured.
FORGET = [{"prompt": [0], "n_predict": 1, "cache_prompt": False}]


def body_of(schema: dict[str, Any], prompt_ids: Sequence[int], begun: bool, max_tokens: int) -> dict[str, Any]:
    """A request for one of the values of facts.py; of texts, the prompt has the first quotation mark (`begun`)."""
    match schema:
        case {"enum": choices}:
            value = " | ".join(json.dumps(one) for one in choices)
        case {"format": "date"}:
            value = '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
        case {"type": "string"}:
            value = f"{CHARACTER}{{0,{schema['maxLength']}}}"
        case {"type": "boolean"}:
            value = '"true" | "false"'
        case _:
            value = '"0" | [1-9] [0-9]{0,17}'
    grammar = f'root ::= ({value}) "\\"" {AFTER}?' if begun else f'root ::= " "? ({value}) {AFTER}'
    return {
        "prompt": list(prompt_ids),
        "grammar": grammar,
        "stop": ['"'] if begun else [",", "}"],
        "n_predict": max_tokens,
        "temperature": 0,
        "cache_prompt": True,
    }


def complete(port: int, bodies: Sequence[dict[str, Any]], slots: int) -> list[dict[str, Any]]:
    """The replies; each slot gets every n-th request, one after another."""

    def of_slot(slot: int) -> list[dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
        try:
            return [_reply(connection, body | {"id_slot": slot}) for body in bodies[slot::slots]]
        finally:
            connection.close()

    with ThreadPoolExecutor(slots) as pool:
        by_slot = list(pool.map(of_slot, range(slots)))
    return [by_slot[number % slots][number // slots] for number in range(len(bodies))]


def _reply(connection: http.client.HTTPConnection, body: dict[str, Any]) -> dict[str, Any]:
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise PastaError(f"llama.cpp's server: status {response.status}: {content[:300]!r}")
    return json.loads(content)


def value_in(reply: dict[str, Any], begun: bool) -> str | None:
    """The JSON text of a reply's value; None: it was cut off."""
    if reply["stop_type"] != "word":
        return None
    return json.dumps(reply["content"], ensure_ascii=False) if begun else reply["content"].strip()
