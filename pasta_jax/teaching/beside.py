"""Held-out prompts with the answers of the taught model and of the model as it was, for a person to read."""

from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.evaluate.run import Evaluation
from pasta_jax.view.templates import plain

MOST = 10


def table(evaluation: Evaluation) -> str:
    """Some answers as Markdown, whole, with what a reader wants to know of each."""
    parts = ["# Held-out prompts\n"]
    ours, theirs = evaluation.answers["model"], evaluation.answers["baseline"]
    for one, other in list(zip(ours, theirs, strict=True))[:MOST]:
        topics = ", ".join(chunk.topic for chunk in one.chunks) or "none"
        parts += [
            f"## {plain(' '.join(one.prompt.split()))}\n",
            f"**Taught**, {_figures(one)}; chunks: {plain(topics)}\n",
            f"{_quoted(one.text)}\n",
            f"**As it was**, {_figures(other)}\n",
            f"{_quoted(other.text)}\n",
        ]
    return "\n".join(parts)


def _figures(one: SystemAnswer) -> str:
    return f"{one.text_tokens} tokens in {one.critical_path} steps{'' if one.finished else ', cut off'}"


def _quoted(text: str) -> str:
    """Answers may hold headings of their own."""
    return "\n".join(f"> {plain(line)}" for line in text.splitlines())
