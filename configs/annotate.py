"""Annotate instruction data with PASTA-LANG: which parts of each answer can be written in parallel.

    python -m launch.annotate --config=configs/annotate.py:sharegpt_structure --output=runs/structure

Rerun the command to resume a run that was stopped or killed. The folder then holds records.jsonl (accepted records),
refused.jsonl (the others, each with reason and place), summary.json, statistics.md, chart.svg, and dataset/, the
tokenised dataset that training reads. --inspect=5 shows five records, their chunks in colour; with --forks, five that
have chunks. docs/DATA.md describes sources and fields.

Variants:

sharegpt_structure  all usable ShareGPT pairs by their form alone, no network; under two minutes on two CPU cores, about
                    5,490 records
local               your own pairs by their form, for your own model (docs/YOUR_MODEL.md); needs --config.source=FILE,
                    --config.model.path=<the model, whose tokenizer is used>; seconds
pasta               also later turns and other packaged data, filtered by the form of the answer: what `pasta` and
                    `baseline_sft` in checkpoints/ descend from; under two minutes on two CPU cores, 2,440 records
own                 a model's own answers, with promises as long as their chunks; needs --config.source=<a file that
                    `launch.decode --prompts_file` wrote>; see docs/DATA.md
answers             a model's sequential answers by their form, to teach that model (launch.teach)
likelihood          weighs the chunks of an earlier run with SmolLM2; some 75 minutes on two CPU cores; needs
                    --config.records=runs/structure/records.jsonl
weighed             weighs the chunks of an `answers` run (launch.teach with weigh=True)
openai, gemini      a language model behind an API; the key comes from the environment
toy                 the toy task, in seconds
"""

from pasta_jax.annotate.settings import (
    EndpointSettings,
    FormFilter,
    FormSettings,
    LikelihoodSettings,
    ToySettings,
)
from pasta_jax.runs.settings import changed
from pasta_jax.weights.settings import ModelSource


def sharegpt_structure() -> FormSettings:
    """ShareGPT pairs by their form alone, no network."""
    return FormSettings()


def local() -> FormSettings:
    """Your own pairs by their form, up to max_tokens long, in the tokens of your model: source and model.path."""
    return changed(
        FormSettings(),
        source="",
        prompt_words=(1, 10_000),
        response_words=(1, 10_000),
        drop_evaluation=False,
        validation_percent=10,  # of a small set, the default may hold out none
        model=ModelSource(),
    )


def pasta() -> FormSettings:
    """What `pasta` and `baseline_sft` descend from: named chunks of moderate length, and answers without a fork."""
    return FormSettings(
        source="sharegpt,alpaca_rows,preferences",
        later_turns=True,
        response_words=(4, 350),
        max_tokens=512,
        form=FormFilter(ascii=True),
    )


def own() -> FormSettings:
    """A model's own answers to prompts of its training, filtered like those that it was trained on."""
    return changed(pasta(), annotator="own", source="", later_turns=False)


def answers() -> FormSettings:
    """A model's sequential answers by their form, up to max_tokens long; launch.teach drops evaluation prompts."""
    return changed(
        pasta(),
        source="",
        later_turns=False,
        prompt_words=(1, 10_000),
        response_words=(1, 10_000),
        drop_evaluation=False,
        validation_percent=0,
        model=ModelSource(),
        form=dict(ascii=False, named=False, short_items=10),
    )


def likelihood() -> LikelihoodSettings:
    """Join chunks or leave them to main by what hiding them costs a model."""
    return LikelihoodSettings()


def weighed() -> LikelihoodSettings:
    """Weigh the chunks of an `answers` run; as there, records are kept by their form."""
    return LikelihoodSettings(validation_percent=0, model=ModelSource(), form=answers().form)


def openai() -> EndpointSettings:
    """Any endpoint with OpenAI's chat completions API; your own: --config.endpoint.url=http://localhost:8000/v1."""
    return EndpointSettings()


def gemini() -> EndpointSettings:
    """Gemini, the paper's annotator (which used gemini-1.5-flash), by its endpoint with OpenAI's API."""
    return changed(
        EndpointSettings(),
        annotator="gemini",
        endpoint=dict(
            url="https://generativelanguage.googleapis.com/v1beta/openai",
            model="gemini-2.5-flash",
            key_variable="GEMINI_API_KEY",
            reasoning_effort="none",  # its reasoning would count toward max_tokens
        ),
    )


def toy() -> ToySettings:
    """The toy task's own answers and annotations, with its own tokenizer."""
    return changed(
        ToySettings(),
        source="",
        model=dict(preset="toy"),
        prompt_words=(1, 1000),
        response_words=(1, 1000),
        drop_evaluation=False,
    )
