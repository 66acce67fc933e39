"""Rules that a program can check an answer against: IFEval's 25 kinds, by IFEval's own code (Zhou et al. 2023).

A verdict is the strict one, on the answer as it is, so shares can be quoted beside others'. The checkers come from the
package that has IFEval's questions. They detect languages with langdetect and split sentences with NLTK, whose data a
package has too: nothing is downloaded.
"""

import dataclasses
import functools
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pasta_jax.data.pairs import Pair, Unreadable, parse_pair
from pasta_jax.data.sources import rows_of
from pasta_jax.errors import PastaError
from pasta_jax.files import packages

LISTS = {"keywords", "forbidden_words"}  # arguments that are lists; the checkers would take a text as one, too


@dataclasses.dataclass(frozen=True)
class Rule:
    """One requirement on an answer."""

    kind: str  # a key of IFEval's table of checkers
    arguments: tuple[tuple[str, object], ...]

    def is_followed_by(self, answer: str) -> bool:
        """Whether the answer follows the rule; an empty one never does."""
        try:
            return bool(answer.strip()) and bool(_checker(self.kind, dict(self.arguments)).check_following(answer))
        except RecursionError:  # a thousand brackets where JSON was asked for
            return False


def share(rules: Sequence[Rule], answer: str) -> float:
    """The share of the rules that the answer follows."""
    return sum(rule.is_followed_by(answer) for rule in rules) / len(rules)


def rules_of(source: str) -> dict[str, tuple[Rule, ...]]:
    """The rules of a source's questions; its records have `instruction_id_list` and `kwargs`, as IFEval has."""
    rules = {}
    for place, row in rows_of(source):
        pair = row if isinstance(row, Unreadable) else parse_pair(row, source, place)
        if isinstance(pair, Pair) and "instruction_id_list" in row:
            rules[pair.question] = rules_of_row(row, place)
    return rules


def rules_of_row(row: dict, place: str) -> tuple[Rule, ...]:
    """The rules of one record; malformed ones are refused by place."""
    kinds, arguments = row["instruction_id_list"], row.get("kwargs")
    if not isinstance(kinds, list) or not isinstance(arguments, list) or len(kinds) != len(arguments):
        raise PastaError(f"{place}: kwargs: must hold one object for each of instruction_id_list")
    return tuple(_rule(kind, values, place) for kind, values in zip(kinds, arguments, strict=True))


def _rule(kind: object, values: object, place: str) -> Rule:
    if not isinstance(kind, str) or kind not in checkers():
        raise PastaError(f"{place}: instruction_id_list: unknown kind {kind!r}; choose one of {', '.join(checkers())}")
    if not isinstance(values, dict | None):
        raise PastaError(f"{place}: kwargs of {kind}: must be an object")
    arguments = {name: value for name, value in (values or {}).items() if value is not None}
    parameters = list(inspect.signature(checkers()[kind].build_description).parameters)[1:]  # the first is self
    if set(arguments) != set(parameters):  # a checker would draw what is missing by chance
        expected, actual = (", ".join(names) or "none" for names in (parameters, arguments))
        raise PastaError(f"{place}: kwargs of {kind}: must be {expected}; the record has {actual}")
    for name, value in arguments.items():
        if (name in LISTS) != isinstance(value, list):
            raise PastaError(f"{place}: kwargs of {kind}: {name} must {'' if name in LISTS else 'not '}be a list")
    try:
        _checker(kind, arguments).check_following("Is this text, with a comma, one that follows the rule?")
    except Exception as error:  # the checkers test no types: any exception may come
        raise PastaError(f"{place}: kwargs of {kind}: {arguments} can't be checked ({error!r})") from None
    return Rule(kind, tuple(arguments.items()))


def _checker(kind: str, arguments: Mapping[str, Any]) -> Any:
    """IFEval's checker of one rule."""
    checker = checkers()[kind](kind)
    checker.build_description(**arguments)
    if "letter" in arguments:
        checker._letter = arguments["letter"].lower()  # in place of one such as #, IFEval draws a letter by chance
    return checker


@functools.cache
def checkers() -> dict[str, type]:
    """IFEval's checkers by kind."""
    import langdetect  # these take a second
    import nltk

    langdetect.DetectorFactory.seed = 0  # it samples
    nltk.data.path.insert(0, str(packages.path("punkt").parents[3]))
    folder = packages.path("ifeval").parents[1]
    # Imported by itself: the package around it needs others that are not installed.
    spec = importlib.util.spec_from_file_location(
        "pasta_jax_ifeval", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.INSTRUCTION_DICT
