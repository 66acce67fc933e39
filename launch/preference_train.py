"""Step 4 of the preference stage: pairs as the model reads them, the reference's numbers, training."""

import contextlib
import signal

from ml_collections import ConfigDict

from launch.preference_stage import Policy, Stage, answers_of, fingerprint_of_params, scoring_of
from launch.sft import place, stop_on_sigterm
from pasta_jax.errors import PastaError
from pasta_jax.pipelines.artifacts import Made, say


def train_step(
    stage: Stage, policy: Policy, frozen, samples: Made, pairs: Made, first: str, number: int
) -> Policy | None:
    """Step 4: from the policy of the round before towards the better answers; None if it was stopped."""
    import jax

    from pasta_jax.checkpoint import Checkpoints, provenance
    from pasta_jax.metrics import Metrics
    from pasta_jax.train.loop import Rhythm, Run, train
    from pasta_jax.train.optimizer import Plan, new_optimizer, schedule
    from pasta_jax.train.preference import Preference, best_of_n_margin, preference_loss
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
    plan = Plan(steps=feed.steps(asked.seed, asked.epochs), **{name: asked[name] for name in names})
    optimizer = new_optimizer(plan)
    # A step takes its argument's memory, and Pasta-SFT is needed again.
    state = place(config, new_state(jax.tree.map(jax.numpy.copy, policy.trainable), optimizer, asked.seed))
    folder = stage.steps.place("train", settings)
    checkpoints = Checkpoints(folder / "checkpoints", provenance(settings, pairs.fingerprint), 1, 0)
    latest = checkpoints.latest()
    if latest is not None:
        state = checkpoints.restore(latest, state)
        say(f"train: going on from step {latest} of {plan.steps}")
    if int(state.step) < plan.steps:
        metrics = Metrics(folder, int(state.step), plan.steps, tensorboard=False)
        longest = asked.lengths[-1]
        loop = Run(
            steps=plan.steps,
            accumulate=asked.accumulate,
            batch=feed.batch,
            held_out=(),
            loss=preference_loss(scoring_of(stage), Preference(**loss)),
            optimizer=optimizer,
            rate=schedule(plan),
            flops_per_token=flops_per_token(stage.sft.params, stage.sft.config, longest, bool(config.adapter.rank)),
            peak=peak_flops(jax.devices()),
            probe=None,
            rhythm=Rhythm(log=config.every.log, held_out=0, probe=0, save=config.every.save),
        )
        with until_sigterm() as stopping:
            state = train(loop, state, frozen, metrics, checkpoints, stopping)
        metrics.close()
    checkpoints.close()
    if int(state.step) < plan.steps:
        return None
    return Policy(f"round {number}", state.trainable, fingerprint_of_params(state.trainable))


@contextlib.contextmanager
def until_sigterm():
    """Whether SIGTERM has come, to be asked after each step of training; elsewhere it ends the run at once, which no
    other step minds."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield stop_on_sigterm()
    finally:
        signal.signal(signal.SIGTERM, before)


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

    from pasta_jax.train.pair_feed import scored
    from pasta_jax.train.preference import log_probabilities

    asked = stage.config.train
    settings = {"model": first, "pairs": pairs.fingerprint, "lengths": list(asked.lengths), "rows": asked.rows}
    scoring = scoring_of(stage)
    score = jax.jit(lambda params, batch: log_probabilities(scoring, params, batch))

    def records(start: int):
        rows = 2 * asked.rows
        sides = [
            scored(lambda batch: score(stage.sft.params, batch), [e[side] for e in examples], asked.lengths, rows)
            for side in (1, 2)
        ]
        yield [
            {"prompt": at, "better": better, "worse": worse}
            for (at, _, _), better, worse in zip(examples, *sides, strict=True)
        ]

    return stage.steps.make("reference", settings, len(examples), len(examples), records)


def feed_of(examples: list, reference: Made, asked: ConfigDict):
    """What the training loop reads."""
    from pasta_jax.train.pair_feed import Pair, PairFeed

    pairs = [
        Pair(better, worse, known["better"], known["worse"])
        for (_, better, worse), known in zip(examples, reference.records, strict=True)
    ]
    return PairFeed(pairs, tuple(asked.lengths), asked.rows)
