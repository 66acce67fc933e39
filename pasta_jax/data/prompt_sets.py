"""Prompts to evaluate on, chosen before a model is trained: by hash, those that ask for a list, those not to fork."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from pasta_jax.data.pairs import Pair
from pasta_jax.data.sources import read, rows_of

# 100 prompts of our own whose answers gain nothing from forks: facts, code, poems, letters, what-ifs in one paragraph,
# translations, arithmetic, single sentences. None is in AlpacaEval, MT-bench, IFEval or the sources of training data.
NO_FORK = Path(__file__).with_name("no_fork.jsonl")

# 496 prompts of our own that ask for lists, steps, comparisons or several parts, to learn from. None is near one of
# AlpacaEval, MT-bench, IFEval or NO_FORK.
IN_PARTS = Path(__file__).with_name("in_parts.jsonl")

LONGEST_REQUEST = 60  # words; a longer prompt mostly holds a text to work on, whose words say little about the task

_NUMBER = r"(?:[2-9]|1\d|20|two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|several|a few)"
_REQUEST = (
    "give|name|suggest|provide|recommend|tell|show|share|write|find|generate|offer|identify|describe|explain|"
    "come up with|think of|brainstorm|mention|compile|create|make|need|want|list|discuss|outline|what (?:are|were)"
)
# What people ask for when they want a list.
_ITEMS = (
    "tips|ideas|ways|steps|reasons|suggestions|recommendations|strategies|techniques|methods|benefits|advantages|"
    "disadvantages|pros and cons|activities|options|examples|facts|factors|causes|effects|symptoms|differences|"
    "similarities|characteristics|features|types|kinds|uses|skills|habits|challenges|issues|names|titles|topics|questions"
)
_COUNTED = (
    f"{_ITEMS}|things|points|books|movies|films|shows|songs|restaurants|places|foods|dishes|recipes|synonyms|rules|"
    "tools|resources|products|companies|brands|countries|cities|animals|plants|games|gifts|exercises|slogans|"
    "headlines|jokes|puns|quotes|jobs|apps|websites"
)
_LIST = re.compile(
    "|".join(
        (
            r"(?:^|[.!?:,] |\b(?:please|you|and|to|let's) )list\b",
            r"\b(?:a|an|the|top \d+) (?:[\w-]+ ){0,2}list (?:of|with)\b(?<!from the list of)(?<!given a list of)",
            r"\bto-do list\b|\bbullet(?:ed|s| points?)?\b|\bitemi[sz]e\b|\bwhat (?:are|were) some\b",
            rf"^(?!what|which|how|why)(?:\w+ ){{0,2}}(?:{_ITEMS})\b",
            rf"\b(?:{_REQUEST})\b(?: (?!how\b|why\b)[\w'/,-]+){{0,5}}? (?:{_ITEMS})\b",
            rf"\b{_NUMBER} (?:[\w'-]+ ){{0,2}}(?:{_COUNTED})\b",
        )
    ),
    re.IGNORECASE,
)


def no_fork() -> list[str]:
    """The prompts of NO_FORK, in order."""
    return [pair.instruction for pair in read(str(NO_FORK)) if isinstance(pair, Pair)]


def in_parts() -> list[str]:
    """The prompts of IN_PARTS, in order."""
    return [prompt for _, row in rows_of(str(IN_PARTS)) if isinstance(prompt := row["prompt"], str)]


def by_hash(prompts: Sequence[str], count: int) -> list[str]:
    """`count` distinct prompts: those whose SHA-256 is smallest, smallest first. The choice depends on nothing else."""
    return sorted(set(prompts), key=lambda prompt: hashlib.sha256(prompt.encode()).hexdigest())[:count]


def asks_for_list(prompt: str) -> bool:
    """Whether a prompt asks for a list: a rule on its words alone, without a look at any answer.

    It holds for prompts of at most LONGEST_REQUEST words that ask to list something, for a list or bullet points, for
    several of something ("seven books"), or for tips, ideas, steps, reasons, advantages and the like.
    """
    words = prompt.split()
    return len(words) <= LONGEST_REQUEST and bool(_LIST.search(" ".join(words)))
