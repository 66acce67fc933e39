"""Measure a trained model, and its speed relative to its baseline's own answers.

    python -m launch.evaluate --config=configs/evaluate.py:toy \
        --config.model.path=runs/toy/model --config.baseline.path=runs/toy_baseline/model
    python -m launch.evaluate --config=configs/evaluate.py:smollm2 --workdir=runs/evaluation \
        --config.model.adapter=runs/pasta/adapter --config.baseline.adapter=runs/baseline/adapter

Variants: toy (the toy task's held-out problems; the models are those of `launch.sft --config=configs/sft.py:toy`, the
baseline with --config.strip_tags=True), tiny (four problems, in seconds, for the models of configs/sft.py:tiny), and
smollm2 (adapters on SmolLM2, on prompts of AlpacaEval, of IFEval and some not to fork; a killed run resumes). It prints
a table, and on the last line of stdout one JSON object. Of toy: shares of exact answers, forks, speedups, and how much
exactness remains when a rule of decoding is broken (docs/RESULTS.md shows one). Of smollm2: for each set of prompts the
figures of evaluate/figures.py. toy takes two minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "toy") -> ConfigDict:
    """The config of a variant."""
    return common.pick({"tiny": tiny, "toy": toy, "smollm2": smollm2}, variant, "configs/evaluate.py")


def toy() -> ConfigDict:
    """The toy task."""
    config = ConfigDict(
        {
            "model": common.model(""),
            "baseline": common.model(""),
            "level": "medium",  # small, medium or large: the level that the models were trained on
            "problems": 256,
            "start": 0,  # number of the first problem
            "ablation": 32,  # problems with ends to decode with each rule broken; 0: none
            "decoding": common.decoding(lanes=32, rows=9),
            "request": common.request(max_tokens=600),
        }
    )
    config.decoding.widths = ()  # the model is small: compiling more loops costs more time than they save
    del config.request["sequential"]  # never for the model, always for the baseline
    return config


def tiny() -> ConfigDict:
    """A few problems for the models of configs/sft.py:tiny, in seconds."""
    config = toy()
    config.update(level="small", problems=4, ablation=0)
    config.decoding.update(lanes=4, rows=4)
    config.request.update(max_tokens=60)
    return config


def smollm2() -> ConfigDict:
    """Adapters on SmolLM2, on ordinary prompts."""
    config = ConfigDict(
        {
            "model": common.model("smollm2_135m"),
            "baseline": common.model("smollm2_135m"),
            "prompts": {"alpaca_eval": 200, "no_fork": 100, "ifeval": 0},  # of each set, by the hash of their text
            "decoding": common.decoding(lanes=8, rows=8),
            "request": common.request(max_tokens=400),
            "unmasked": 50,  # answers of each set to compare with what the model would write without the grammar mask
            "pairs": 50,  # prompts of the first set whose two answers a person is to compare: WORKDIR/pairs.jsonl
            "timed": 0,  # prompts of the first set to answer one at a time, for realised speedup; on a quiet machine
        }
    )
    del config.request["sequential"]  # never for the model, always for the baseline
    return config
