"""Which prompts a model is taught from: a user's own, or ours and packaged ones; some are held out to evaluate with."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from pasta_jax.annotate.pipeline import tokenizer_for
from pasta_jax.answer.prompts import read_prompts_file
from pasta_jax.data import sources
from pasta_jax.data.near import Near
from pasta_jax.data.pairs import Pair
from pasta_jax.data.prompt_sets import asks_for_list, by_hash, in_parts, no_fork
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints, packages
from pasta_jax.files.remote import path_of
from pasta_jax.lang.words import single_words
from pasta_jax.progress import say
from pasta_jax.teaching.settings import PromptsSettings, TeachSettings

MOST_WORDS = 60  # of a packaged prompt; longer ones mostly hold a text to work on


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Prompts to learn from, those that should fork spread evenly among them, and prompts to evaluate with."""

    train: list[str]
    held_out: list[str]
    left_out: dict[str, int]  # by reason
    given: str = ""  # the fingerprint of a user's prompts, all of them


def room(settings: TeachSettings) -> Callable[[str], bool]:
    """Whether a prompt has ids, and leaves room for an answer in a row of training: no record is made of another."""
    tokenizer, most = tokenizer_for(settings.model), max(settings.training.lengths)
    tokenizer.chat([("user", "")])  # where its template can't be used, it says why

    def fits(text: str) -> bool:
        try:
            return len(tokenizer.chat([("user", text)])) < most
        except PastaError:
            return False

    return fits


def choose(settings: PromptsSettings, fits: Callable[[str], bool] = lambda _: True) -> Prompts:
    """The prompts that the settings describe: by the hash of their text, so that the choice is always the same."""
    ours = [] if settings.file else in_parts()
    given = _of_file(settings.file) if settings.file else _packaged(settings)
    # The prompts of the evaluation sets that are installed, and ours that nothing is to be trained on.
    reserved = Near(chain(no_fork(), sources.evaluation_prompts(filter(_is_there, sources.EVALUATION))))
    listed = set(ours)
    # One of several with the same words: another would be learnt from where this one is held out.
    short = [text for text in [*ours, *given] if fits(text)]
    unreserved = [text for text in reversed(short) if text not in reserved]
    distinct = {tuple(single_words(text.casefold())) or text: text for text in unreserved}.values()
    forks = {text: text in listed or asks_for_list(text) for text in distinct}
    parts, others = ([text for text, is_part in forks.items() if is_part is kind] for kind in (True, False))
    held_out = min(settings.held_out, len(distinct) // 4)  # of a small file, most is needed to learn from
    count = min(settings.count + held_out, len(distinct))
    wanted = min(len(parts), max(round(settings.parts * count), count - len(others)))
    if not count:
        raise PastaError("config.prompts: none is left to learn from; name a file with others")
    kinds = by_hash(parts, wanted), by_hash(others, count - wanted)
    apart = round(held_out * wanted / count)  # of those with parts
    held = spread(kinds[0][:apart], kinds[1][: held_out - apart])
    left_out = {
        "without ids, or too long for config.training.lengths": len(ours) + len(given) - len(short),
        "like one of an evaluation set": len(short) - len(unreserved),
        "the same words as another": len(unreserved) - len(distinct),
        "beyond config.prompts.count": len(distinct) - count,
    }
    fingerprint = fingerprints.of_texts(given) if settings.file else ""
    return Prompts(spread(kinds[0][apart:], kinds[1][held_out - apart :]), held, left_out, fingerprint)


def spread(many: Sequence[str], few: Sequence[str]) -> list[str]:
    """Both in one order, each evenly: any beginning of it has about the same share of either."""
    placed = [((number + 0.5) / len(kind), text) for kind in (many, few) for number, text in enumerate(kind)]
    return [text for _, text in sorted(placed)]


def lines(rows: Iterable[Mapping[str, object]]) -> str:
    """JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def of_prompts(prompts: Iterable[str]) -> str:
    """JSON lines that launch.decode and launch.evaluate read."""
    return lines({"prompt": text} for text in prompts)


def fingerprint(file: str) -> str:
    """Of the prompts in a file."""
    return fingerprints.of_texts(_of_file(file))


def _of_file(file: str) -> list[str]:
    return [one.text for one in read_prompts_file(path_of(file))]


def _packaged(settings: PromptsSettings) -> list[str]:
    names = [name for name in sources.separated(settings.sources) if name]
    sources.refuse_for_training(names)
    found = []
    for name in names:
        if name not in sources.TERMS:
            known = ", ".join(sources.TERMS)
            raise PastaError(
                f"config.prompts.sources: {name}: unknown; choose from {known}, or set config.prompts.file"
            )
        if not _is_there(name):
            say(f"{name}: not installed (launch/setup.sh --data), so its prompts are left out")
            continue
        pairs = (pair for pair in sources.read(name) if isinstance(pair, Pair))
        found += [pair.instruction for pair in pairs if len(pair.instruction.split()) <= MOST_WORDS]
    return found


def _is_there(name: str) -> bool:
    try:
        return packages.path(name).exists()
    except PastaError:
        return False
