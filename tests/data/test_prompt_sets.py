"""The prompt sets of an evaluation: what they hold, that nothing in them is anyone else's, and which ask for a list."""

import json
import re
from collections import Counter

import pytest

from pasta_jax.data.near import Near
from pasta_jax.data.pairs import Pair, prompt_key
from pasta_jax.data.prompt_sets import NO_FORK, asks_for_list, by_hash, in_parts, no_fork
from pasta_jax.data.sources import EVALUATION, PACKAGED, evaluation_prompts, read
from tests.helpers.requires import requires_data


def test_the_no_fork_set_has_100_different_prompts_of_eight_kinds():
    rows = [json.loads(line) for line in NO_FORK.read_text().splitlines()]
    kinds = ["fact", "code", "poem", "letter", "what-if", "translation", "arithmetic", "sentence"]
    assert Counter(row["category"] for row in rows) == dict(zip(kinds, (20, 15, 10, 12, 10, 12, 12, 9), strict=True))
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
    keys = {prompt_key(prompt) for prompt in ours}
    for source in PACKAGED:
        pairs = [pair for pair in read(source) if isinstance(pair, Pair)]
        assert pairs
        assert not [pair.instruction for pair in pairs if prompt_key(pair.instruction) in keys]
        if source in EVALUATION:
            for theirs in {words_of(pair.instruction) for pair in pairs}:
                close = [prompt for prompt, own in ours.items() if len(own & theirs) > 0.55 * len(own | theirs)]
                assert not close, (source, theirs)


@requires_data
def test_none_of_our_prompts_to_learn_from_is_near_one_to_evaluate_on():
    assert len(set(in_parts())) == len(in_parts()) == 496
    reserved = Near([*evaluation_prompts(), *no_fork()])
    assert [prompt for prompt in in_parts() if prompt in reserved] == []


def test_by_hash_depends_on_the_texts_alone():
    prompts = [f"prompt {number}" for number in range(50)]
    chosen = by_hash(prompts, 5)
    assert chosen == by_hash(prompts[::-1] * 2, 5)
    assert chosen == by_hash([*chosen, *prompts[:1]], 50)[:5]
    assert by_hash(["a", "b", "c"], 2) == ["c", "b"]  # sha256: a ca97…, b 3e23…, c 2e7d…


@pytest.mark.parametrize(
    ("prompt", "is_list"),
    [
        ("List the layers of the TCP/IP model.", True),
        ("Can you list some rivers?", True),
        ("Make a short list of words for snow", True),
        ("write me a top 10 list of the funniest ways to die", True),
        ("ideas for a birthday party", True),
        ("What are some good books to read on a train?", True),
        ("Name three animals that hibernate.", True),
        ("Please suggest a few names for a goldfish", True),
        ("Explain the main advantages of solar power.", True),
        ("What are the pros and cons of renting?", True),
        ("Summarise this in bullet points: it rained.", True),
        ("What causes the northern lights?", False),
        ("Pick one from the list of colours: red, green.", False),
        ("Explain your reasoning step-by-step.", False),
        ("How do steam engines work?", False),
        ("Why do some people enjoy horror movies?", False),
        ("Sort a list in Python", False),
        ("Give me a recipe for borscht.", False),
        ("Name three animals that hibernate. " + "word " * 60, False),
    ],
)
def test_whether_a_prompt_asks_for_a_list(prompt, is_list):
    assert asks_for_list(prompt) == is_list
