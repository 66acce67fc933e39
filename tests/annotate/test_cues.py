"""Cues of dependence: which parts of an answer need others by their words."""

import pytest

from pasta_jax.annotate.structural import annotate
from pasta_jax.lang.program import Chunk, Program
from tests.annotate.test_structural import TOKENIZER

MORE = "and it goes on with some more words so that the part is long enough for a fork"


def chunks(question: str, answer: str) -> list[str]:
    """The texts of the chunks of an answer."""
    parts = Program.from_annotation(annotate(question, answer), TOKENIZER).parts
    return [part.text for part in parts if isinstance(part, Chunk)]


@pytest.mark.parametrize("rule", ["---", "* * *", "___"])
@pytest.mark.parametrize(
    "closing",
    [
        "Would you like me to turn this into a table?",
        "Do you want prices?",
        "Want me to add hotels?",
        "Please let me know what to add.",
        "Thank you for your question.",
        "I hope this plan is a help. " + f"Ask about any of it {MORE}. " * 3,
    ],
)
def test_rules_and_a_closing_remark_stay_in_main(rule, closing):
    cities = [f"## {city}\n\n{city} is a city {MORE}." for city in ("Tokyo", "Kyoto", "Osaka")]
    items = [f"{n}. {city}: this city is big {MORE}." for n, city in enumerate(("Tokyo", "Kyoto", "Osaka"), 1)]
    for parts in (cities, items):
        text = f"\n\n{rule}\n\n".join(["Here is a plan.", *parts, closing])
        assert [len(chunk.split("\n")) for chunk in chunks("Plan a journey.", text)] == [1, 1, 1]
