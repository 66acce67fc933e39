"""Regular expressions as automata over bytes: ours compiled here, those from outside in a process with limits."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import outlines_core

from pasta_jax.automata import regex_tables
from pasta_jax.automata.automaton import MOST_STATES, Automaton, of_tables
from pasta_jax.automata.regex_tables import Tables
from pasta_jax.errors import PastaError

MOST = 4096  # states of its automaton
# The compiler prefers the first of several alternatives, as searches do: a|ab would not accept "ab". With a character
# at the end that occurs nowhere else, all of them last until there. (Unicode has no use for it.)
SENTINEL = "\U0010ffff"
SECONDS, MEMORY = 1, 200 << 20  # of compiling it: of the CPU, since a busy machine refuses nothing else
LONGEST_S = 10  # by the clock


@functools.cache
def trusted(pattern: str) -> Automaton:
    """An expression of ours."""
    return _automaton(regex_tables.tables(_ended(pattern), MOST_STATES))


@functools.lru_cache(maxsize=32)  # up to 4 MB each
def untrusted(pattern: str) -> tuple[Automaton, float]:
    """An expression from outside, and the seconds of the CPU that compiling it took."""
    folder = str(Path(outlines_core.__file__).parents[1])
    command = [sys.executable, "-I", "-S", regex_tables.__file__, folder, str(MOST), str(MEMORY), str(SECONDS)]
    try:
        done = subprocess.run(
            command, input=json.dumps(_ended(pattern)).encode(), capture_output=True, timeout=LONGEST_S
        )
    except subprocess.TimeoutExpired:
        raise PastaError(f"pattern: compiling it takes more than {LONGEST_S} s; make it simpler") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace")
        why = said.partition("refused: ")[2] if "refused: " in said else "compiling it takes too much time or memory"
        raise PastaError(f"pattern: {' '.join(why.split())[:200]}; use only what a finite automaton can check")
    found, seconds = json.loads(done.stdout)
    return _automaton(found), seconds


def _ended(pattern: str) -> str:
    return rf"(?:{pattern})\x{{{ord(SENTINEL):X}}}"


def _automaton(found: Tables) -> Automaton:
    ends, edges = found
    state, byte, to = np.array(edges, np.int64).reshape(-1, 3).T
    size = 1 + int(max([0, *ends, state.max(initial=0), to.max(initial=0)]))
    table = np.full((size + 1, 256), -1, np.int32)
    table[state + 1, byte] = to + 1
    table[0] = table[1]  # a start that nothing leads back to
    *before, last = SENTINEL.encode()
    at = np.arange(size + 1)
    for byte in before:
        at = np.where(at >= 0, table[at, byte], -1)
    after = np.where(at >= 0, table[at, last], -1)
    accepts = np.isin(after, np.array(ends) + 1)
    table[at[accepts], last] = -1
    return of_tables(_trimmed(table, accepts), accepts)


def _trimmed(table: np.ndarray, accepts: np.ndarray) -> np.ndarray:
    """Without the transitions from which no end can be reached."""
    lives, more = accepts, True
    while more:
        reaches = lives | (lives[table] & (table >= 0)).any(axis=1)
        lives, more = reaches, bool((reaches != lives).any())
    return np.where((table >= 0) & lives[table], table, -1)
