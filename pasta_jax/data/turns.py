"""Later turns of a conversation as Pairs: those whose question can be understood without the turns before it."""

import re

from pasta_jax.data.pairs import SPEAKERS, Pair, calls, is_text, system_beside, whole
from pasta_jax.lang.words import words

# Words by which a later question refers to earlier turns, and those with which one that doesn't may begin.
_REFERS = re.compile(
    r"\b(?:this|that|these|those|it|its|they|them|their|he|she|his|her|above|below|previous(?:ly)?|again|another|"
    r"alternatives?|others|else|instead|the (?:first|second|third|last|next|same|other)|former|latter|earlier|continue|"
    r"(?:some|few|\d+|any|one) more|more (?:\w+s|of)|rewrite|rephrase|reword|expand|elaborate|shorten|summari[sz]e|"
    r"revise|correct|redo|you (?:just )?(?:said|mentioned|gave|wrote|listed)|your (?:answer|response|list|last))\b",
    re.IGNORECASE,
)
_OPENS = re.compile(
    r"\W*(?:and|but|so|or|then|ok(?:ay)?|yes|no|thanks?|thank you|great|good|now|hi|hello)\b", re.IGNORECASE
)
_ASKS = re.compile(
    r"\W*(?:what|which|who|whom|whose|when|where|why|how|is|are|was|were|do|does|did|can|could|should|would|will|"
    r"may|might|if|in what|list|name|give|tell|describe|explain|write|create|make|generate|provide|suggest|compare|"
    r"identify|outline|define|discuss|recommend|propose|show|share|find|brainstorm|design|develop|plan|act|please|"
    r"i|as|for|from|with|top|best|\d+|benefits?|advantages?|examples?|ways|tips|pros|types|steps|reasons|ideas)\b",
    re.IGNORECASE,
)


def later_pairs(row: object, source: str, place: str) -> list[Pair]:
    """The later questions of a conversation that can be understood without it, each with its answer."""
    if not isinstance(row, dict):
        return []
    field, speaker, text = ("messages", "role", "content") if "messages" in row else ("conversations", "from", "value")
    turns = row.get(field)
    if not isinstance(turns, list):
        return []
    said = [turn if isinstance(turn, dict) else {} for turn in turns]
    messages = [(SPEAKERS.get(str(turn.get(speaker))), None if calls(turn) else whole(turn.get(text))) for turn in said]
    pairs = []
    first = next((n for n, (speaker, _) in enumerate(messages) if speaker != "system"), 0)
    system = messages[0][1] if first else system_beside(row)  # it holds for the whole conversation
    if not isinstance(system, str) or not is_text(system):
        return []
    for number in range(first + 1, len(messages) - 1):
        (asker, question), (answerer, answer) = messages[number : number + 2]
        texts = (question, answer)
        if (asker, answerer) != ("user", "assistant") or not all(isinstance(t, str) and t.strip() for t in texts):
            continue
        if stands_alone(question) and is_text(question) and is_text(answer):
            pairs.append(Pair.of(system, question, answer, source, f"{place}, turn {number + 1}"))
    return pairs


def stands_alone(question: str) -> bool:
    """Whether a later question refers to nothing before it, as far as its words tell."""
    return (
        len(words(question)) > 4
        and bool(_ASKS.match(question))
        and not (_REFERS.search(question) or _OPENS.match(question))
    )
