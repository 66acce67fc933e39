"""The prompt sets of an evaluation: what they hold, that nothing in them is anyone else's, and which ask for a list."""

import json
import re
from collections import Counter

import pytest

from pasta_jax.data.pairs import Pair, prompt_key
from pasta_jax.data.prompt_sets import NO_FORK, asks_for_list, by_hash, no_fork
from pasta_jax.data.sources import EVALUATION, PACKAGED, read
from tests.helpers.requires import requires_data


def test_the_no_fork_set_has_100_different_prompts_of_eight_kinds():
    rows = [json.loads(line) for line in NO_FORK.read_text().splitlines()]
    assert Counter(row["category"] for row in rows) == {
        "fact": 20,
        "code": 15,
        "poem": 10,
        "letter": 12,
        "what-if": 10,
        "translation": 12,
        "arithmetic": 12,
        "sentence": 9,
    }
    assert no_fork() == [row["turns"][0] for row in rows]
    assert len({" ".join(prompt.split()).casefold() for prompt in no_fork()}) == 100
    assert not any(map(asks_for_list, no_fork()))


@pytest.mark.slow
@requires_data
def test_no_prompt_of_the_no_fork_set_is_in_or_close_to_other_data():
    """Close: of the words in either prompt, more than 55% are in both. "Capital of X?", "capital of Y?" is at 71%."""

    def words_of(text: str) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", text.casefold()))

    ours = {prompt: words_of(prompt) for prompt in no_fork()}
    keys = {prompt_key(Pair("", "", prompt, "", "")) for prompt in ours}
    for source in PACKAGED:
        pairs = [pair for pair in read(source) if isinstance(pair, Pair)]
        assert pairs
        assert not [pair.instruction for pair in pairs if prompt_key(pair) in keys]
        if source in EVALUATION:
            for theirs in {words_of(pair.instruction) for pair in pairs}:
                close = [prompt for prompt, own in ours.items() if len(own & theirs) > 0.55 * len(own | theirs)]
                assert not close, (source, theirs)


def test_by_hash_depends_on_the_texts_alone():
    prompts = [f"prompt {number}" for number in range(50)]
    chosen = by_hash(prompts, 5)
    assert chosen == by_hash(prompts[::-1] * 2, 5)
    assert chosen == by_hash([*chosen, *prompts[:1]], 50)[:5]
    assert by_hash(["a", "b", "c"], 2) == ["c", "b"]  # sha256: a ca97…, b 3e23…, c 2e7d…


@pytest.mark.parametrize(
    "prompt",
    [
        "List the layers of the TCP/IP model.",
        "Can you list some rivers?",
        "Make a short list of words for snow",
        "write me a top 10 list of the funniest ways to die",
        "ideas for a birthday party",
        "What are some good books to read on a train?",
        "Name three animals that hibernate.",
        "Please suggest a few names for a goldfish",
        "Explain the main advantages of solar power.",
        "What are the pros and cons of renting?",
        "Summarise this in bullet points: it rained.",
    ],
)
def test_prompts_that_ask_for_a_list(prompt):
    assert asks_for_list(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        "What causes the northern lights?",
        "Pick one from the list of colours: red, green.",
        "Explain your reasoning step-by-step.",
        "How do steam engines work?",
        "Why do some people enjoy horror movies?",
        "Sort a list in Python",
        "Give me a recipe for borscht.",
        "Name three animals that hibernate. " + "word " * 60,
    ],
)
def test_prompts_that_do_not_ask_for_a_list(prompt):
    assert not asks_for_list(prompt)
