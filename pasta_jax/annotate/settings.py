"""The settings of launch.annotate, a class for each kind of annotator, and of launch.verifier."""

import dataclasses
from typing import Annotated, Literal

from msgspec import Meta

from pasta_jax.data.pairs import VALIDATION_PERCENT
from pasta_jax.files.validated import Count, Finite, Lengths, Positive, Records, Seed, Share, Threading, WordLimits
from pasta_jax.llm.client import Endpoint
from pasta_jax.weights.settings import ModelSource


@dataclasses.dataclass(frozen=True)
class AnnotateSettings:
    """What all annotators share."""

    annotator: str = ""
    source: str = "sharegpt"  # see docs/DATA.md; several: separated by commas
    later_turns: bool = False  # also later questions of a conversation, where they can be understood without it
    records: str = ""  # records.jsonl of an earlier run, to annotate instead of a source; empty: none
    max_pairs: Count = 0  # 0: all; else N pairs, those whose ids come first
    prompt_words: WordLimits = (3, 100)  # fewest and most
    response_words: WordLimits = (40, 350)  # fewest and most
    drop_duplicates: bool = True  # keep the first of several pairs with the same prompt
    drop_evaluation: bool = True  # drop prompts of AlpacaEval, MT-bench and IFEval, which must be installed
    # Of the prompts, by their hash; records of an earlier run keep their split.
    validation_percent: Annotated[int, Meta(ge=0, le=100)] = VALIDATION_PERCENT
    # Its tokenizer measures lengths; `likelihood` also runs it.
    model: ModelSource = ModelSource("smollm2_135m")
    max_tokens: Positive = 2048  # of prompt and linear answer together: the paper's pool
    dataset: bool = True  # also write the tokenised dataset that training reads


@dataclasses.dataclass(frozen=True)
class FormFilter:
    """Which records are kept, by their form."""

    ascii: bool = False  # only ASCII texts, for a model that knows little but English
    finished: bool = True  # an answer must end like a sentence; False where all are known to have ended by themselves
    named: bool = True  # every chunk must begin with a name, as `Name: text`; a model of a billion needs that less
    max_chunks: Positive = 12
    max_chunk_tokens: Positive = 120
    min_speedup: Annotated[float, Meta(ge=1)] = 1.15  # theoretical, over the same answer without tags
    max_repetition: Share = 0.2  # share of an answer's 4-grams that occurred before in it
    unforked: Annotated[float, Meta(ge=0, lt=1)] = 0.3  # share of records without a fork, each kind of answer equally
    # A list whose items have at most so many words on average is one of these kinds. 0: no list is.
    short_items: Count = 0


@dataclasses.dataclass(frozen=True)
class FormSettings(AnnotateSettings):
    """Annotate by the form of the text; `own` are a model's answers, with promises as long as their chunks."""

    annotator: Literal["structure", "own"] = "structure"
    form: FormFilter | None = None  # which records to keep by their form; None: all


@dataclasses.dataclass(frozen=True)
class Weighing:
    """How costs are measured, and which are too high."""

    max_cost: Finite = 0.15  # nats per token in a passage's worst window; above it, it needs what is hidden from it
    window: Positive = 12  # tokens
    max_fixes: Count = 4  # an answer that needs more is a sequence and keeps no tags
    min_speedup: Finite = 1.05  # plain tokens over critical path; below it an answer keeps no tags
    lengths: Lengths = (512, 1024, 2048)  # slots for an answer's ids, the fewest that hold them; each one compiles


@dataclasses.dataclass(frozen=True)
class LikelihoodSettings(AnnotateSettings):
    """Weigh the chunks of an earlier run with a model."""

    annotator: Literal["likelihood"] = "likelihood"
    weighing: Weighing = Weighing()
    form: FormFilter | None = None  # as of FormSettings, once chunks are weighed


@dataclasses.dataclass(frozen=True)
class EndpointSettings(AnnotateSettings):
    """Annotate with a language model behind an API."""

    annotator: Literal["openai", "gemini"] = "openai"
    endpoint: Endpoint = Endpoint()
    concurrency: Threading = 16  # requests at a time
    # Requests per pair, each with the reason for the last refusal, before the refusal is final.
    attempts: Threading = 3


@dataclasses.dataclass(frozen=True)
class ToyProblems:
    """A run of problems of the toy task, starting at the first."""

    level: Literal["small", "medium", "large"] = "small"
    seed: Seed = 1
    count: Records = 500


@dataclasses.dataclass(frozen=True)
class ToySettings(AnnotateSettings):
    """Annotate problems of the toy task."""

    annotator: Literal["toy"] = "toy"
    toy: ToyProblems = ToyProblems()


@dataclasses.dataclass(frozen=True)
class VerifierSettings:
    """A model, and a number of twins whose dependence it is to detect."""

    model: ModelSource = ModelSource("smollm2_135m")
    pairs: Annotated[int, Meta(ge=1, le=100_000)] = 200
    seed: Seed = 0
    max_cost: Finite = 0.15  # the limit in use, reported with the best one; nats per token
    window: Positive = 12  # tokens; a passage costs what its most expensive window costs on average
    lengths: Lengths = (192,)  # slots for a row's ids
