"""Measure a trained model: exactness, and theoretical speedup over its baseline.

    python -m launch.evaluate --config=configs/evaluate.py:toy \
        --config.model.path=runs/toy/model --config.baseline.path=runs/toy_baseline/model

Variants: toy (the toy task's held-out problems; the models are those of `launch.sft --config=configs/sft.py:toy`, the
baseline with --config.strip_tags=True), tiny (four problems, in seconds, for the models of configs/sft.py:tiny). It
prints a table, and on the last line of stdout one JSON object: shares of exact answers, forks, speedups over the
baseline's own answers, and how much exactness remains when a rule of decoding is broken (docs/RESULTS.md shows one).
toy takes two minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "toy") -> ConfigDict:
    """The config of a variant."""
    return common.pick({"tiny": tiny, "toy": toy}, variant, "configs/evaluate.py")


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
