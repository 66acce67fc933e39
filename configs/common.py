"""What config files share: variants chosen by `file.py:variant`; settings of a model, of decoding and of a request."""

from collections.abc import Callable

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from pasta_jax.errors import PastaError

FORKS = "pasta"  # the adapter of this project that forks, unless a config names another


def pick(variants: dict[str, Callable[[], ConfigDict]], name: str, file: str) -> ConfigDict:
    """The config of a variant; an unknown name is refused with the list of known ones."""
    if name not in variants:
        raise PastaError(f"--config={file}:{name}: unknown variant; choose one of {', '.join(variants)}")
    return variants[name]()


def model(preset: str, dtype: str = "auto") -> ConfigDict:
    """Which model to load (weights/source.py::ModelSource).

    It is decoded with in a `dtype`: float32, bfloat16 (on one CPU, of the matrices), `platform` (float32 on a CPU,
    bfloat16 elsewhere), q8 (8 bits, on one CPU), q4 (the blocks of a quantised GGUF file as they are, on one CPU), or
    `auto`: q4 where that is possible, else `platform`. Training knows only the platform's.
    """
    return ConfigDict(
        {
            "preset": preset,  # a known architecture; empty: any that `path` holds
            "path": "",  # GGUF file, Hugging Face folder or id, as org/name; empty: weights from an installed package
            "adapter": "",  # pasta, baseline_sft, or a folder adapter/ that launch.sft wrote; empty: none
            "policy": "",  # position policy; empty: the model's own (any other is refused)
            "constant": 40,  # positions per chunk under the policy `constant`
            "dtype": dtype,  # to decode with; see above
            "kernel": True,  # decode on the CPU with our own products of a few rows; False: with XLA's
        }
    )


def shipped(adapter: str, dtype: str = "auto") -> ConfigDict:
    """SmolLM2 with an adapter of this project, by its name or from the folder where its recipe writes it."""
    config = model("smollm2_135m", dtype)
    config.adapter = adapter
    return config


def decoding(lanes: int, rows: int) -> ConfigDict:
    """How requests are decoded together (decode/generate.py::DecodeConfig)."""
    return ConfigDict(
        {
            "lanes": lanes,  # requests decoded at a time
            "rows": rows,  # threads of a request decoded at a time, main included
            "widths": (2, 4),  # row counts a step may use besides 1 and `rows`; each adds a compiled loop
            "packed": (),  # instead, with several lanes: row counts of all lanes together, besides lanes * rows
            "slots": 0,  # tokens per request, prompt included; 0: as many as needed
            "piece": 0,  # tokens of a prompt written at once, and the unit of what prompts share; 0: the platform's own
            "kernel": True,  # on a TPU, attention by our own kernel, which reads only slots in use; False: by XLA
        }
    )


def mesh() -> ConfigDict:
    """The devices that a model is decoded with (models/sharding.py::MeshSettings): by default one of them."""
    return ConfigDict(
        {
            "data": 1,  # devices that share lanes; 0: all that `model` leaves
            "model": 1,  # devices that share each layer, by heads, rows of the MLP and of the vocabulary
        }
    )


def training_mesh() -> ConfigDict:
    """The devices that a model is trained on (models/sharding.py::TrainingMeshSettings): by default all of them."""
    return ConfigDict(
        {
            "data": 0,  # devices that share the rows of a batch; 0: all that `model` leaves
            "model": 1,  # devices that share each layer
            "fsdp": False,  # divide parameters and moments over `data` too: less memory, more traffic
        }
    )


def ray() -> ConfigDict:
    """A Ray cluster, and what each of its workers takes."""
    return ConfigDict(
        {
            "address": "",  # of a cluster; empty: that in RAY_ADDRESS, else this machine
            "workers": 0,  # at a time on this machine; 0: as many as its CPUs allow
            "cpus": 1.0,  # of a worker
            "gpus": 0.0,
            "tpus": 0,  # chips
            "retries": 3,  # of what a lost worker was doing
        }
    )


def request(max_tokens: int) -> ConfigDict:
    """How one request is answered (decode/generate.py::Request)."""
    return ConfigDict(
        {
            "max_tokens": max_tokens,  # of the answer, tags included
            "temperature": placeholder(float),  # 0: greedy; None: the model's own (weights/generation_config.py)
            "top_k": placeholder(int),  # 0: off; None: the model's own
            "top_p": placeholder(float),  # 1: off; None: the model's own
            "seed": 0,
            "sequential": False,  # True: forbid the tags and decode one token after another
            "max_topic_tokens": 12,  # of a promise's topic
            "max_topic_words": placeholder(int),  # 0: no limit; None: the model's own
            "distinct_topics": placeholder(bool),  # no topic repeats one of the same answer; None: the model's own
            "end_stray_chunks": placeholder(bool),  # a chunk that would do what only main may ends; None: the same
            "max_chunk_tokens": 638,  # plus two tags makes 640, the longest chunk that a promise can announce
        }
    )


def checked_judge() -> ConfigDict:
    """The weighted sum of checks and log-likelihood (judges/checked.py) with an untrained SmolLM2."""
    return ConfigDict(
        {
            "checks": {
                "weights": {  # of terms from 0 to 1; 0: not computed
                    "finished": 1.0,
                    "topics": 0.5,
                    "repetition": 2.0,
                    "rules": 1.0,
                    "fluency": 1.0,
                    "fit": 1.0,
                    "enough": 0.0,
                },
                "worst": -4.0,  # nats per token whose fluency is 0
                "best": -1.0,  # and 1
                "share": 0.8,  # of the other answer's words that is enough
                "scale": 0.25,  # difference of two sums that is a verdict of 73%
            },
            "untrained": model("smollm2_135m"),
            "lengths": (128, 192, 256, 320, 384),  # tokens per row, question included; of longer ones the beginning
            "rows": 2,  # answers per batch; more suit an accelerator
            "slice": 64,  # tokens of each row whose logits exist at a time
            "products": "float32",  # or bfloat16, as in configs/sft.py
        }
    )
