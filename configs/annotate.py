"""Annotate instruction data with PASTA-LANG: which parts of each answer can be written side by side.

    python -m launch.annotate --config=configs/annotate.py:sharegpt_structure --output=runs/structure

The same command goes on where it was stopped or killed. In the folder: records.jsonl (what was taken), refused.jsonl
(what not, with reason and place), summary.json, statistics.md, chart.svg, and dataset/, tokenised, which training
reads. --inspect=5 then shows records, their threads in colour. docs/DATA.md describes sources and fields.

Variants: sharegpt_structure (all usable ShareGPT pairs by their form alone, no network; under two minutes on two CPU
cores, about 5,860 records), likelihood (weighs the chunks of an earlier run with SmolLM2; some 75 minutes on two CPU
cores; needs --config.records=runs/structure/records.jsonl), openai and gemini (an LLM behind an API; the key comes from
the environment), toy (the toy task, in seconds).
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "sharegpt_structure") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "sharegpt_structure": lambda: annotate("structure"),
        "likelihood": likelihood,
        "openai": openai,
        "gemini": gemini,
        "toy": toy,
    }
    return common.pick(variants, variant, "configs/annotate.py")


def annotate(annotator: str) -> ConfigDict:
    """What all variants share."""
    return ConfigDict(
        {
            "annotator": annotator,  # structure, likelihood, openai, gemini, toy
            "source": "sharegpt",  # see docs/DATA.md
            "records": "",  # an earlier run's records.jsonl instead of a source
            "most": 0,  # other than 0: so many pairs, those whose id comes first
            "prompt_words": (3, 100),  # fewest and most of a prompt that is used
            "response_words": (40, 350),
            "drop_duplicates": True,  # of several pairs with one prompt the first stays
            "drop_evaluation": True,  # prompts of AlpacaEval and MT-bench, which must be installed for that
            "validation_percent": 2,  # of the prompts, by their hash
            "model": common.model("smollm2_135m"),  # whose tokenizer measures lengths; likelihood also runs it
            "max_tokens": 2048,  # of prompt and linear answer together: the paper's pool
            "dataset": True,  # also write the tokenised data set that training reads
        }
    )


def likelihood() -> ConfigDict:
    """Prune and join by what a model says each chunk costs (annotate/likelihood.py::Settings)."""
    config = annotate("likelihood")
    config.weighing = ConfigDict(
        {
            "max_cost": 0.15,  # nats a token in the worst window of a passage: above it, it needs what it did not see
            "window": 12,  # tokens
            "max_mends": 4,  # an answer that asks for more is a sequence, and keeps no tags
            "min_speedup": 1.05,  # plain tokens over critical path: below it an answer keeps no tags
            "lengths": (512, 1024, 2048),  # slots for an answer's ids, the least that hold them; each compiles programs
        }
    )
    return config


def openai() -> ConfigDict:
    """Any endpoint that speaks OpenAI's chat completions; your own: --config.endpoint.url=http://localhost:8000/v1."""
    return endpoint("openai", "https://api.openai.com/v1", "gpt-4o-mini", "OPENAI_API_KEY")


def gemini() -> ConfigDict:
    """Gemini's own endpoint, the paper's annotator (which used gemini-1.5-flash)."""
    return endpoint("gemini", "https://generativelanguage.googleapis.com/v1beta", "gemini-2.5-flash", "GEMINI_API_KEY")


def endpoint(kind: str, url: str, model: str, key_variable: str) -> ConfigDict:
    """How to ask, how fast, and what to do when it fails (llm.py::Endpoint)."""
    config = annotate(kind)
    config.endpoint = ConfigDict(
        {
            "kind": kind,
            "url": url,
            "model": model,
            "key_variable": key_variable,  # the environment variable that holds the key; empty: none is sent
            "temperature": 0.0,
            "max_tokens": 4096,  # of an answer
            "timeout_s": 120.0,  # for a whole answer
            "requests_per_minute": 300.0,
            "retries": 6,  # after the first try
            "backoff_s": 2.0,  # before the first retry; twice as long before each next one
            "max_backoff_s": 60.0,
            "dollars_per_million_in": 0.0,  # what your provider asks; 0: the cost is not counted
            "dollars_per_million_out": 0.0,
        }
    )
    config.concurrency = 16  # questions under way
    config.asks = 3  # times a pair is asked for, with what was wrong, before its refusal stands
    return config


def toy() -> ConfigDict:
    """The toy task's own answers and annotations, with its own tokenizer."""
    config = annotate("toy")
    config.source = ""
    config.model.preset = "toy"
    config.prompt_words = (1, 1000)
    config.response_words = (1, 1000)
    config.drop_evaluation = False
    config.toy = ConfigDict({"level": "small", "seed": 1, "count": 500})
    return config
