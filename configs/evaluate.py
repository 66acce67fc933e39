"""Measure a trained model, and its speed relative to its baseline's own answers.

    python -m launch.evaluate --config=configs/evaluate.py:toy \
        --config.model.path=runs/toy/model --config.baseline.path=runs/toy_baseline/model
    python -m launch.evaluate --config=configs/evaluate.py:alpaca --limit=80 --workdir=runs/alpaca

Variants of the toy task: toy (its held-out problems; the models are those of `launch.sft --config=configs/sft.py:toy`,
the baseline with --config.strip_tags=True) and tiny (four problems, in seconds, for the models of configs/sft.py:tiny).
They print shares of exact answers, forks, speedups, and how much exactness remains when a rule of decoding is broken
(docs/RESULTS.md shows one). toy takes two minutes on two CPU cores.

Variants on ordinary prompts: alpaca (AlpacaEval's 805), mt_bench (80, both turns) and ifeval (541, with its rules) have
four systems on SmolLM2: the adapter that forks, the baseline, and Skeleton-of-Thought with and without a shared pool.
smollm2 compares the first two only, or adapters named with --config.model.adapter and --config.baseline.adapter.
ablation decodes with a part changed that the adapter was trained with: no topics, no syncs, other positions.
--limit=80 takes 80 prompts of each set, those whose text has the smallest hash; a later run with more goes on from
there. A killed run resumes. WORKDIR gets report.html, report.md and report.json, one record per answer, and the answers
as alpaca_eval and MT-bench's judge read them. Each system takes some 5 s a prompt on two CPU cores, and twice that
where it is timed.

Each prints a table, and on the last line of stdout one JSON object.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "toy") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "tiny": tiny,
        "toy": toy,
        "smollm2": smollm2,
        "alpaca": lambda: all_systems("alpaca_eval", 805),
        "mt_bench": lambda: all_systems("mt_bench", 80),
        "ifeval": lambda: all_systems("ifeval", 541),
        "ablation": ablation,
    }
    return common.pick(variants, variant, "configs/evaluate.py")


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
            "mesh": common.mesh(),
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
            # also apar, skeleton and unshared: Skeleton-of-Thought in one pool and without one; and those of ablation()
            "systems": ("model", "baseline"),
            # in float32 on every CPU, so that answers are those of docs/; `auto` is faster
            "model": common.shipped(common.FORKS, dtype="platform"),
            "baseline": common.shipped("baseline_sft", dtype="platform"),
            "apar": common.model("smollm2_135m", dtype="platform"),  # needs an adapter of configs/sft.py:apar
            "rival": common.model("", dtype="platform"),  # writes skeletons and points; no preset: the baseline
            "prompts": {  # of each set, by the hash of their text
                "alpaca_eval": 200,  # of 805
                "mt_bench": 0,  # of 80; both turns
                "ifeval": 0,  # of 541
                "no_fork": 100,  # of 100
                "file": 0,  # of prompts_file
            },
            "prompts_file": "",  # JSON lines with prompt or instruction, and perhaps dataset
            "skeleton": {
                "most_points": 8,
                "skeleton_tokens": 120,
                "point_tokens": 80,  # of each
                "router": "none",  # lists: a prompt that asks for no list is answered sequentially
            },
            "decoding": common.decoding(lanes=32, rows=8),
            "request": common.request(max_tokens=400),
            "mesh": common.mesh(),
            "executor": "local",  # where prompts are answered: local, or ray (docs/TPU.md); timed is always local
            "ray": common.ray(),
            "unmasked": 50,  # answers of each set to compare with what the model would write without the grammar mask
            "pairs": 50,  # prompts of the first set whose two answers a person is to compare: WORKDIR/pairs.jsonl
            "timed": 0,  # prompts of the first set to answer one at a time, for realised speedup; on a quiet machine
            "rounds": 3,  # timed runs of each such prompt, of which the median counts, after one that doesn't
            "throughput": 0,  # prompts of the first set to answer many at a time, for tokens per second
            "judges": (),  # compare answers with the baseline's: repetition, rules, checked (configs/judges.py)
            "checked": common.checked_judge(),
            "texts": True,  # the report shows prompts and answers; False: figures and timelines only
            "annotations": "",  # alpaca_eval's annotations.json, whose win rate the report is to state
        }
    )
    config.decoding.packed = (16, 32, 48, 64, 96)
    del config.request["sequential"]  # never for the model, always for the others
    return config


def all_systems(prompts: str, count: int) -> ConfigDict:
    """The shipped adapters and both rivals, on all prompts of one set, each timed once, one at a time."""
    config = smollm2()
    config.systems = ("model", "baseline", "skeleton", "unshared")
    config.prompts.update({name: count * (name == prompts) for name in config.prompts})
    config.update(timed=count, rounds=1, judges=("repetition",))
    return config


def ablation() -> ConfigDict:
    """The shipped adapters, and the one that forks with a part of decoding changed that it was trained with."""
    config = smollm2()
    config.systems = ("model", "baseline", "no_topics", "no_syncs", "constant", "shared_start")
    config.prompts.update(alpaca_eval=100, no_fork=0)
    config.update(unmasked=0, pairs=0, judges=("checked",))
    return config
