r"""Preference optimisation: from Pasta-SFT to a better and faster model; the weight of quality is adjustable.

    python -m launch.preference --config=configs/preference.py:toy --workdir=runs/toy_preference \
        --config.model.path=runs/toy/model --config.baseline.path=runs/toy_baseline/model

A round samples answers, scores them, pairs the best with the worst, trains on the pairs, and evaluates. Each step is a
file in WORKDIR/artifacts (or in --config.artifacts, which runs may share) and is computed once: rerun the command to
resume a killed run. During training, Ctrl-C and SIGTERM save a checkpoint first and exit with 130 or 143. Changing
--config.score.quality_weight or --config.score.efficiency reuses all samples and verdicts. The workdir ends with model/
(and adapter/) and report.json; stdout with a table, its last line one JSON object.

Variants: tiny (a few prompts, to see that everything works), toy (the toy task; five minutes on two busy CPU cores;
docs/TOY.md has the expected figures), smollm2_135m (LoRA; a language model judges: set --config.judge.endpoint.url and
.model), pasta (pasta_sft, trained further: docs/results/adapters.md has the commands that make it and the records that
--config.prompts.records needs; the judge `checked`; on two CPU cores an hour, and 20 minutes for each further weight,
as samples and verdicts are reused), qwen (Qwen2.5-Coder-1.5B with its adapter, beside the model as it was; for an
accelerator, some six minutes on one H200; --config.judge.reward.model names what launch.train_judge wrote,
--config.prompts.file the prompts, such as prompts.jsonl of launch.teach), taught (what launch.teach runs with
--config.preference_rounds=1), local (as pasta, for other models; the records are those that it was trained on):

    python -m launch.preference --config=configs/preference.py:local --workdir=runs/mine_preference \
        --config.model.path=MODEL --config.model.adapter=runs/mine --config.baseline.path=runs/mine_baseline \
        --config.prompts.records=runs/mine_records
"""

from pasta_jax.preference.settings import PreferenceSettings
from pasta_jax.runs.settings import changed
from pasta_jax.weights.settings import ModelSource


def toy() -> PreferenceSettings:
    """The toy task."""
    return changed(
        PreferenceSettings(),
        rounds=1,
        prompts=dict(toy="medium", count=256),
        sample=dict(block=48),
        request=dict(max_tokens=400),
        judge=dict(kind="toy", agreement=0),
        train=dict(learning_rate=1.6e-4, lengths=(192, 320, 512), rows=16, remat=False, epochs=2),
        # Sampled as in training: greedy answers only show the likeliest way of forking.
        evaluate=dict(count=384, temperatures=(1.0,), timed=16),
    )


def tiny() -> PreferenceSettings:
    """Every step in seconds."""
    return changed(
        toy(),
        prompts=dict(toy="small", count=6),
        sample=dict(count=3, block=2),
        decoding=dict(lanes=4, rows=4, widths=()),
        request=dict(max_tokens=100, max_topic_tokens=4, max_chunk_tokens=40),
        train=dict(lengths=(256,), rows=2),
        every=dict(log=1, save=1),
        evaluate=dict(count=4, temperatures=(0.0,), timed=0),
    )


def smollm2_135m() -> PreferenceSettings:
    """SmolLM2 with an adapter, on packaged instructions."""
    return changed(
        PreferenceSettings(),
        prompts=dict(source="alpaca_rows"),
        adapter=dict(rank=16, alpha=32.0),
        train=dict(learning_rate=1e-5, lengths=(256, 512, 1024), rows=4),
        evaluate=dict(count=16),  # the packaged instructions have 18 of the validation split
    )


def qwen() -> PreferenceSettings:
    """Qwen2.5-Coder-1.5B with its adapter, judged by a judge of its own size."""
    untrained = ModelSource("qwen2_5_coder_1_5b")
    return changed(
        taught(),
        model=ModelSource("qwen2_5_coder_1_5b", adapter="qwen2_5_coder_1_5b"),
        baseline=untrained,
        prompts=dict(count=320),
        sample=dict(baseline_temperature=0.7, block=256),
        decoding=dict(lanes=128, rows=6, packed=(128, 256), slots=640),
        judge=dict(
            kind="reward",
            checked=dict(untrained=untrained, lengths=(256, 512, 640), rows=8),
        ),
        score=dict(efficiency="arithmetic"),  # speedup alone rewards brevity, parallelism lists that don't stop
        adapter=dict(rank=8, alpha=16.0),
        train=dict(rows=8, accumulate=1),
    )


def taught() -> PreferenceSettings:
    """An adapter of launch.teach beside the model as it was, whose likelihood is the judge's fluency."""
    return changed(
        pasta(),
        model=ModelSource(),
        baseline=ModelSource(),
        prompts=dict(prompt_words=(1, 10_000), drop_evaluation=False),  # launch.teach has chosen them
        sample=dict(count=6),
        judge=dict(
            checked=dict(
                untrained=ModelSource(),
                lengths=(256, 512, 1024),
                checks=dict(weights=dict(fit=0.0), worst=-1.5, best=-0.25),
            )
        ),
        score=dict(quality_weight=1.0),
        train=dict(lengths=(512,)),
        evaluate=dict(count=0),
    )


def local() -> PreferenceSettings:
    """Any model of docs/MODELS.md, or a run of training, at model.path and baseline.path; settings as of `pasta`."""
    return changed(pasta(), model=ModelSource(), baseline=ModelSource())


def pasta() -> PreferenceSettings:
    """How the adapters with a preference round were trained; docs/results/adapters.md has what each changes."""
    return changed(
        smollm2_135m(),
        model=ModelSource("smollm2_135m", adapter="runs/pasta_sft/adapter"),
        baseline=ModelSource("smollm2_135m", adapter="baseline_sft"),
        rounds=1,
        prompts=dict(source="", count=192, prompt_words=(3, 100)),
        # Greedy, a small baseline repeats itself: any answer would be better.
        sample=dict(count=8, temperature=0.8, baseline_temperature=0.6, block=32),
        decoding=dict(lanes=32, rows=8, packed=(16, 32, 48, 64, 96)),
        request=dict(max_tokens=400),
        judge=dict(
            kind="checked",
            agreement=0,
            checked=dict(products="bfloat16", checks=dict(weights=dict(enough=2.0))),  # or the briefest answers win
        ),
        loss=dict(legal=100.0),  # per nat; the squared distance from the margin changes by some 36 per nat at first
        adapter=dict(dtype="bfloat16"),
        train=dict(
            learning_rate=1e-4,
            lengths=(256, 384, 512),
            rows=2,
            accumulate=2,
            keep_products=True,
            warmup=5,
            products="bfloat16",
        ),
        evaluate=dict(count=32, temperatures=(0.6,)),  # the records have 38 of the validation split
    )
