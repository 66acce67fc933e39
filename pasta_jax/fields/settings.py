"""How fields are filled in: what users of the API and of launch.fill set."""

import dataclasses

from pasta_jax.decode.settings import AnswerSettings
from pasta_jax.files.validated import Lanes, Positive, Threads

ROWS = (1, 2, 4, 8, 16)  # as few programs as possible: the least that holds the threads
WIDTHS = (4,)  # row counts that a step may use besides 1 and `rows`


@dataclasses.dataclass(frozen=True)
class AskOptions(AnswerSettings):
    """How questions about a context are answered: these, and the rules of pasta_jax/weights/rules.py."""

    max_tokens: Positive = 128  # of each field or answer; a value that needs more is incomplete
    system: str = ""  # system message; empty: the model family's default
    rows: Threads = 16  # fields decoded at a time; more don't pay on a CPU
    lanes: Lanes = 1  # contexts decoded at a time


@dataclasses.dataclass(frozen=True)
class FillOptions(AskOptions):
    """How the fields of a context are decoded."""

    instruction: str = "Extract these fields from the text above as JSON."  # between the context and the fields
    fork: bool = True  # False: one text of all fields, token after token, for comparison
    # True: a thread first names the items of a list of objects, then each item has a thread that has read the names
    fork_items: bool = False
