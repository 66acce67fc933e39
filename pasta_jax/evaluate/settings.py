"""The settings of launch.evaluate on ordinary prompts."""

import dataclasses
from typing import Literal

from pasta_jax.decode.settings import AnswerSettings, DecodeConfig
from pasta_jax.files.validated import Count, Positive
from pasta_jax.judges.settings import CheckedSettings, JudgeName, RewardSettings
from pasta_jax.models.settings import MeshSettings
from pasta_jax.runs.ray import RaySettings
from pasta_jax.weights.settings import ModelSource

Ablation = Literal["no_topics", "no_syncs", "constant", "shared_start"]
System = Literal["model", "untagged", "baseline", "skeleton", "unshared", "apar", Ablation]


@dataclasses.dataclass(frozen=True)
class PromptCounts:
    """How many prompts of each set, by the smallest hash of their text; 0: none. Or a file of other prompts."""

    alpaca_eval: Count = 200  # of 805
    mt_bench: Count = 0  # of 80; both turns
    ifeval: Count = 0  # of 541
    no_fork: Count = 100  # of 100
    multipart: Count = 0  # of 400, whose parts have exact answers (multipart.py)
    skip: Count = 0  # of each set, the smallest hashes are left out: prompts that something was chosen on don't report
    file: str = ""  # JSON lines with prompt or instruction, and perhaps dataset: answers its prompts, and no set's


@dataclasses.dataclass(frozen=True)
class SkeletonOptions:
    """How Skeleton-of-Thought answers."""

    most_points: Positive = 8
    skeleton_tokens: Positive = 120  # most tokens of the skeleton
    point_tokens: Positive = 80  # most tokens of each point
    router: Literal["none", "lists"] = "none"  # lists: a prompt that asks for no list is answered sequentially


@dataclasses.dataclass(frozen=True)
class EvaluateSettings:
    """Systems that answer prompts, and how the answers are measured."""

    # untagged is the model with tags forbidden: the speedup over it is that of forks. Also apar, skeleton and unshared:
    # Skeleton-of-Thought in one pool and without one; and the model with a part of decoding changed: no_topics,
    # no_syncs, constant, shared_start.
    systems: tuple[System, ...] = ("model", "untagged", "baseline")
    # In float32 on every CPU, so that answers are those of docs/; `auto` is faster.
    model: ModelSource = ModelSource("smollm2_135m", adapter="pasta", dtype="platform")
    baseline: ModelSource = ModelSource("smollm2_135m", adapter="baseline_sft", dtype="platform")
    apar: ModelSource = ModelSource("smollm2_135m", dtype="platform")  # needs an adapter of configs/sft.py:apar
    rival: ModelSource = ModelSource(dtype="platform")  # writes skeletons and points; no preset: the baseline
    prompts: PromptCounts = PromptCounts()
    skeleton: SkeletonOptions = SkeletonOptions()
    decoding: DecodeConfig = DecodeConfig(lanes=32, rows=8, widths=(2, 4), packed=(16, 32, 48, 64, 96))
    request: AnswerSettings = AnswerSettings(max_tokens=400)
    mesh: MeshSettings = MeshSettings()
    executor: Literal["local", "ray"] = "local"  # where prompts are answered (docs/TPU.md); timed is always local
    ray: RaySettings = RaySettings()
    unmasked: Count = 50  # answers of each set to compare with what the model would write without the grammar mask
    pairs: Count = 50  # prompts of the first set whose two answers a person is to compare: WORKDIR/pairs.jsonl
    timed: Count = 0  # prompts of the first set to answer one at a time, for realised speedup; on a quiet machine
    rounds: Positive = 3  # timed runs of each such prompt, of which the median counts, after one that doesn't
    likelihood: Count = 0  # prompts of the first set: how likely sequential answers are to the baseline's model
    throughput: Count = 0  # prompts of the first set to answer many at a time, for tokens per second
    judges: tuple[JudgeName, ...] = ()  # compare answers with the baseline's (configs/judges.py)
    checked: CheckedSettings = CheckedSettings()
    reward: RewardSettings = RewardSettings()
    texts: bool = True  # the report shows prompts and answers; False: figures and timelines only
    annotations: str = ""  # alpaca_eval's annotations.json, whose win rate the report is to state
