"""Log-probabilities of an answer's tokens as OpenAI's API writes them: of its text in reading order, without tags."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pasta_jax.decode.request import Result, Score
from pasta_jax.tokenizers.tokenizer import Tokenizer

LEAST = -9999.0  # as OpenAI writes what is next to impossible, or forbidden here


class Drawn(NamedTuple):
    """A token of an answer's text."""

    id: int
    score: Score
    thread: int
    end: int  # where it ends in the text


def drawn(result: Result, tokenizer: Tokenizer, text: str) -> list[Drawn]:
    """The tokens of an answer's text, which may be cut by a stop text, and their scores."""
    trace, length, tokens, begun = result.trace, 0, [], []  # `begun`: of a character that is not whole yet
    for at in trace.order().tolist():
        id, score = int(trace.token[at]), result.scores[at]
        if trace.in_topic[at] or tokenizer.tags.is_close(id):
            continue
        length += len(trace.text[at])  # a tag's: U+FFFD, if a character before it is not whole
        if length > len(text):
            return tokens
        if score is not None and not tokenizer.tags.is_tag(id):
            begun.append(Drawn(id, score, int(trace.thread[at]), length))
        if trace.text[at] or not tokenizer.piece(id):
            tokens, begun = tokens + begun, []
    return tokens + begun


def of_fields(result: Result, length: int) -> list[Drawn]:
    """The tokens of an answer's fields, field by field, and their scores; the text between them was not drawn."""
    return [Drawn(*pair, 0, length) for one in result.guests for pair in zip(one.ids, one.scores, strict=True)]


def of_chat(tokens: Sequence[Drawn], tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    """`logprobs` of a choice of chat completions, with so many alternatives."""

    def entry(id: int, logprob: float) -> dict[str, Any]:
        piece = _piece(tokenizer, id)
        about = {"token": piece.decode("utf-8", "replace"), "logprob": max(logprob, LEAST)}
        return about | {"bytes": list(piece)}

    content = [
        entry(id, score.own) | {"top_logprobs": [entry(*other) for other in likeliest(score, top)]}
        for id, score, *_ in tokens
    ]
    return {"content": content, "refusal": None}


def of_text(tokens: Sequence[Drawn], tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    """`logprobs` of a choice of completions."""
    likely = [
        {_piece(tokenizer, id).decode("utf-8", "replace"): value for id, value in likeliest(score, top)}
        for _, score, *_ in tokens
    ]
    return {
        "tokens": [_piece(tokenizer, one.id).decode("utf-8", "replace") for one in tokens],
        "token_logprobs": [max(one.score.own, LEAST) for one in tokens],
        "top_logprobs": likely if top else None,
        "text_offset": [0, *(one.end for one in tokens)][: len(tokens)],
    }


def likeliest(score: Score, count: int) -> list[tuple[int, float]]:
    """The likeliest legal ids."""
    return [(id, value) for id, value in score.top[:count] if value > LEAST]


def _piece(tokenizer: Tokenizer, id: int) -> bytes:
    tags = tokenizer.tags
    return tags.piece(id).encode() if tags.is_tag(id) else tokenizer.piece(id)
