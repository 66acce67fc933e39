"""Annotate instruction data with PASTA-LANG: which parts of each answer can be written in parallel.

    python -m launch.annotate --config=configs/annotate.py:sharegpt_structure --output=runs/structure

Rerun the command to resume a run that was stopped or killed. The folder then holds records.jsonl (accepted records),
refused.jsonl (the others, each with reason and place), summary.json, statistics.md, chart.svg, and dataset/, the
tokenised dataset that training reads. --inspect=5 shows five records, their chunks in colour; with --forks, five that
have chunks. docs/DATA.md describes sources and fields.

Variants:

sharegpt_structure  all usable ShareGPT pairs by their form alone, no network; under two minutes on two CPU cores, about
                    5,860 records
pasta               also later turns and other packaged data, filtered by the form of the answer: what the models in
                    checkpoints/ were trained on; under two minutes on two CPU cores, 2,431 records
own                 a model's own answers, with promises as long as their chunks; needs --config.source=<a file that
                    `launch.decode --prompts_file` wrote>; see docs/DATA.md
likelihood          weighs the chunks of an earlier run with SmolLM2; some 75 minutes on two CPU cores; needs
                    --config.records=runs/structure/records.jsonl
openai, gemini      a language model behind an API; the key comes from the environment
toy                 the toy task, in seconds
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "sharegpt_structure") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "sharegpt_structure": structure,
        "pasta": pasta,
        "own": own,
        "likelihood": likelihood,
        "openai": openai,
        "gemini": gemini,
        "toy": toy,
    }
    return common.pick(variants, variant, "configs/annotate.py")


def annotate(annotator: str) -> ConfigDict:
    """The keys that all variants share (annotate/pipeline.py::Settings)."""
    return ConfigDict(
        {
            "annotator": annotator,  # structure, own, likelihood, openai, gemini, toy
            "source": "sharegpt",  # see docs/DATA.md; several: separated by commas
            "later_turns": False,  # also later questions of a conversation, where they can be understood without it
            "records": "",  # records.jsonl of an earlier run, to annotate instead of a source; empty: none
            "max_pairs": 0,  # 0: all; else N pairs, those whose ids come first
            "prompt_words": (3, 100),  # fewest and most
            "response_words": (40, 350),
            "drop_duplicates": True,  # keep the first of several pairs with the same prompt
            "drop_evaluation": True,  # drop prompts of AlpacaEval, MT-bench and IFEval, which must be installed
            "validation_percent": 2,  # of the prompts, by their hash
            "model": common.model("smollm2_135m"),  # its tokenizer measures lengths; `likelihood` also runs it
            "max_tokens": 2048,  # of prompt and linear answer together: the paper's pool
            "dataset": True,  # also write the tokenised dataset that training reads
        }
    )


def structure() -> ConfigDict:
    """ShareGPT pairs by their form alone, no network."""
    config = annotate("structure")
    config.form = None  # which records to keep by their form (annotate/form.py::FormFilter); None: all
    return config


def pasta() -> ConfigDict:
    """What the models in checkpoints/ were trained on: named chunks of moderate length, and answers without a fork."""
    config = structure()
    config.update(source="sharegpt,alpaca_rows,preferences", later_turns=True, response_words=(4, 350), max_tokens=512)
    config.form = ConfigDict(
        {
            "max_chunks": 12,
            "max_chunk_tokens": 120,
            "min_speedup": 1.15,
            "max_repetition": 0.2,  # share of an answer's 4-grams that occurred before in it
            "unforked": 0.3,  # share of the records without a fork, in equal parts of each kind of answer
        }
    )
    return config


def own() -> ConfigDict:
    """A model's own answers to prompts of its training, filtered like those that it was trained on."""
    config = pasta()
    config.update(annotator="own", source="", later_turns=False)
    return config


def likelihood() -> ConfigDict:
    """Join chunks or leave them to main by what hiding them costs a model (annotate/likelihood.py::Weighing)."""
    config = annotate("likelihood")
    config.weighing = ConfigDict(
        {
            "max_cost": 0.15,  # nats per token in a passage's worst window; above it, it needs what is hidden from it
            "window": 12,  # tokens
            "max_fixes": 4,  # an answer that needs more is a sequence and keeps no tags
            "min_speedup": 1.05,  # plain tokens over critical path; below it an answer keeps no tags
            "lengths": (512, 1024, 2048),  # slots for an answer's ids, the fewest that hold them; each one compiles
        }
    )
    return config


def openai() -> ConfigDict:
    """Any endpoint with OpenAI's chat completions API; your own: --config.endpoint.url=http://localhost:8000/v1."""
    return endpoint("openai", "https://api.openai.com/v1", "gpt-4o-mini", "OPENAI_API_KEY")


def gemini() -> ConfigDict:
    """Gemini, the paper's annotator (which used gemini-1.5-flash), by its endpoint with OpenAI's API."""
    url = "https://generativelanguage.googleapis.com/v1beta/openai"
    return endpoint("gemini", url, "gemini-2.5-flash", "GEMINI_API_KEY")


def endpoint(annotator: str, url: str, model: str, key_variable: str) -> ConfigDict:
    """A language model behind an API (llm/client.py::Endpoint)."""
    config = annotate(annotator)
    config.endpoint = ConfigDict(
        {
            "url": url,
            "model": model,
            "key_variable": key_variable,  # environment variable that holds the key; empty: no key is sent
            "temperature": 0.0,
            "max_tokens": 4096,  # of an answer
            "timeout_s": 120.0,  # without a byte from the endpoint
            "requests_per_minute": 300.0,
            "retries": 6,  # after the first try
            "backoff_s": 2.0,  # before the first retry; doubled for each further one
            "max_backoff_s": 60.0,
            "dollars_per_million_in": 0.0,  # your provider's prices; both 0: not set, and no cost is stated
            "dollars_per_million_out": 0.0,
        }
    )
    config.concurrency = 16  # requests at a time
    config.attempts = 3  # requests per pair, each with the reason for the last refusal, before the refusal is final
    return config


def toy() -> ConfigDict:
    """The toy task's own answers and annotations, with its own tokenizer (annotate/annotators.py::ToyProblems)."""
    config = annotate("toy")
    config.source = ""
    config.model.preset = "toy"
    config.prompt_words = (1, 1000)
    config.response_words = (1, 1000)
    config.drop_evaluation = False
    config.toy = ConfigDict({"level": "small", "seed": 1, "count": 500})
    return config
