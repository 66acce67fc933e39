"""Step 4 of the preference stage: pairs as the model reads them, the reference's numbers, training."""

import dataclasses

from ml_collections import ConfigDict

from launch.preference_stage import Policy, Stage, answers_of, fingerprint_of_params, scoring_of
from pasta_jax.errors import PastaError
from pasta_jax.pipelines.artifacts import Made, say


def train_step(
    stage: Stage, policy: Policy, frozen, samples: Made, pairs: Made, first: str, number: int
) -> Policy | None:
    """Step 4: from the policy of the round before towards the better answers; None if it was stopped."""
    import jax

    from pasta_jax.checkpoint import provenance
    from pasta_jax.pipelines.trainable import MeshSettings, place
    from pasta_jax.train.fit import Keep, fit, until_sigterm
    from pasta_jax.train.loop import Intervals, Run
    from pasta_jax.train.optimizer import OptimizerConfig, new_optimizer, schedule
    from pasta_jax.train.preference import PreferenceLoss, best_of_n_margin, preference_loss
    from pasta_jax.train.speed import flops_per_token, peak_flops
    from pasta_jax.train.state import new_state

    config, asked = stage.config, stage.config.train
    examples = pairs_for_training(stage, samples, pairs)
    reference = reference_step(stage, examples, pairs, first)
    loss = config.loss.to_dict()
    loss["margin"] = loss["margin"] or best_of_n_margin(config.sample.count)
    settings = {
        "start": policy.fingerprint,
        "pairs": pairs.fingerprint,
        "reference": reference.fingerprint,
        "loss": loss,
        "train": stage.plain("train"),
        "adapter": stage.plain("adapter"),
    }
    feed = feed_of(examples, reference, asked)
    names = ("learning_rate", "warmup", "weight_decay", "clip", "b1", "b2", "eps")
    plan = OptimizerConfig(steps=feed.steps(asked.seed, asked.epochs), **{name: asked[name] for name in names})
    optimizer = new_optimizer(plan)
    # A step takes its argument's memory, and Pasta-SFT is needed again.
    start = new_state(jax.tree.map(jax.numpy.copy, policy.trainable), optimizer, asked.seed)
    state = place(start, MeshSettings(**config.mesh.to_dict()))
    folder = stage.steps.place("train", settings)
    longest = asked.lengths[-1]
    loop = Run(
        steps=plan.steps,
        accumulate=asked.accumulate,
        batch=feed.batch,
        held_out=(),
        loss=preference_loss(scoring_of(stage), PreferenceLoss(**loss)),
        optimizer=optimizer,
        learning_rate=schedule(plan),
        flops_per_token=flops_per_token(stage.sft.params, stage.sft.config, longest, bool(config.adapter.rank)),
        peak_flops=peak_flops(jax.devices()),
        probe=None,
        every=Intervals(log=config.every.log, held_out=0, probe=0, save=config.every.save),
    )
    positions = stage.sft.positions and dataclasses.asdict(stage.sft.positions)
    about = provenance(settings, pairs.fingerprint, positions)
    with until_sigterm() as stopping:
        result = fit(folder, loop, state, frozen, about, Keep(1, 0), False, stopping)
    if not result.complete:
        return None
    return Policy(f"round {number}", result.state.trainable, fingerprint_of_params(result.state.trainable))


def pairs_for_training(stage: Stage, samples: Made, pairs: Made) -> list:
    """(number of the prompt, better, worse) as the model reads them; those too long for a row are left out."""
    from pasta_jax.decode.generate import positions_for
    from pasta_jax.evaluate.candidates import example_of

    how = positions_for(stage.sft)
    found, longest, dropped = [], stage.config.train.lengths[-1], 0
    for record in pairs.records:
        if record["better"] is None:
            continue
        at = record["prompt"]
        answers = answers_of(samples.records[at])
        sides = [example_of(stage.sft, stage.prompts[at], answers[record[n]], how) for n in ("better", "worse")]
        if max(map(len, sides)) > longest:
            dropped += 1
        else:
            found.append((at, *sides))
    if dropped:
        say(f"train: {dropped} pairs are too long for {longest} tokens and left out")
    if not found:
        raise PastaError(f"no pair fits into {longest} tokens; raise config.train.lengths")
    return found


def reference_step(stage: Stage, examples: list, pairs: Made, first: str) -> Made:
    """The frozen reference's log-probabilities of all answers to be learnt from, computed once."""
    import jax

    from pasta_jax.train.pair_feed import score_examples
    from pasta_jax.train.preference import log_probabilities

    asked = stage.config.train
    settings = {"model": first, "pairs": pairs.fingerprint, "lengths": list(asked.lengths), "rows": asked.rows}
    scoring = scoring_of(stage)
    score = jax.jit(lambda params, batch: log_probabilities(scoring, params, batch))

    def records(start: int):
        rows = 2 * asked.rows
        sides = [
            score_examples(
                lambda batch: score(stage.sft.params, batch), [e[side] for e in examples], asked.lengths, rows
            )
            for side in (1, 2)
        ]
        yield [
            {"prompt": at, "better": better, "worse": worse}
            for (at, _, _), better, worse in zip(examples, *sides, strict=True)
        ]

    return stage.steps.make("reference", settings, len(examples), len(examples), records)


def feed_of(examples: list, reference: Made, asked: ConfigDict):
    """What the training loop reads."""
    from pasta_jax.train.pair_feed import PairExample, PairFeed

    pairs = [
        PairExample(better, worse, known["better"], known["worse"])
        for (_, better, worse), known in zip(examples, reference.records, strict=True)
    ]
    return PairFeed(pairs, tuple(asked.lengths), asked.rows)
