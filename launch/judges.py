"""Print how far judges that ask nobody agree with given preferences; JSON on the last line. See configs/judges.py."""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from launch import cli
from pasta_jax.errors import PastaError


def main(config: ConfigDict) -> None:
    """One judge after another over the same pairs."""
    from pasta_jax.judges.offline import PROXIES

    if config.pairs < 1:
        raise PastaError(f"--config.pairs={config.pairs}: give at least 1")
    if unknown := [kind for kind in config.kinds if kind not in PROXIES]:
        raise PastaError(f"config.kinds: there is no {unknown[0]!r}; choose of {', '.join(PROXIES)}")
    cli.announce_device()

    from tqdm import tqdm

    from pasta_jax.data.sources import given_preferences
    from pasta_jax.judges.judge import agreement
    from pasta_jax.judges.offline import comparing

    pairs = given_preferences()[: config.pairs]
    model = scoring = None
    if "likelihood" in config.kinds:
        model, scoring = model_of(config)
    result: dict = {"pairs": len(pairs), "model": model.name if model else "", "judges": {}}
    for kind in config.kinds:
        judge = comparing(proxy(kind, model, scoring, tuple(config.lengths), {}, config.rules), scale=1.0)
        found = agreement(judge, tqdm(pairs, desc=kind, file=sys.stderr, mininterval=5))
        print(f"{kind:12} a proxy; {found}", flush=True)
        result["judges"][kind] = dataclasses.asdict(found) | {"near_chance": found.near_chance}
    print(json.dumps(result))


def model_of(config: ConfigDict):
    """(the frozen model, how answers are scored by it)."""
    from pasta_jax.models.weights import load_model, platform_dtype
    from pasta_jax.train.loss import Scoring

    model = load_model(config.model.preset, config.model.path)
    tags = model.tokenizer.tags
    return model, Scoring(model.config, tags, platform_dtype(), slice=config.slice, block=0, remat=False)


def proxy(
    kind: str, model, scoring, lengths: Sequence[int], references: Mapping[str, str], rules_source: str
) -> Callable[[str, str], float]:
    """What a proxy measures of a question and an answer.

    `model`, `scoring` and `lengths` are of likelihood; `references`, known answers by question, of relevance.
    """
    from pasta_jax.judges import offline as judges_offline

    match kind:
        case "repetition":
            return judges_offline.repetition
        case "length":
            return judges_offline.length
        case "relevance":
            from pasta_jax.judges.minilm import load_minilm

            return judges_offline.relevance(load_minilm(), references)
        case "rules":
            from pasta_jax.judges.rules import rules_of

            rules = rules_of(rules_source)
            if not rules:
                raise PastaError(
                    f"{rules_source}: no question has rules to judge by; "
                    "give records with instruction_id_list and kwargs, as IFEval's are"
                )
            return judges_offline.rules_kept(rules)
        case "likelihood":
            import jax

            from pasta_jax.train.preference import log_probabilities

            score = jax.jit(lambda params, batch: log_probabilities(scoring, params, batch))
            return judges_offline.likelihood(model, lambda batch: score(model.params, batch), lengths)
    raise PastaError(f"{kind!r} is no proxy; choose of {', '.join(judges_offline.PROXIES)}")


if __name__ == "__main__":
    cli.run(main, default_config="configs/judges.py")
