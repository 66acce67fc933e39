"""A loaded model: a transformer with its weights, its tokenizer, and how it is meant to be sampled."""

import dataclasses

import jax
import jax.numpy as jnp

from pasta_jax.files import fingerprints
from pasta_jax.lang.structure import Positions
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.kernels.bfloat16 import BITS, NARROW
from pasta_jax.models.parameters import Params, is_stacked
from pasta_jax.tokenizers.template import Template
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.for_cpu import CODED
from pasta_jax.weights.generation_config import PLAIN
from pasta_jax.weights.rules import Defaults

BLOCKS = "q4"  # a dtype: float32, with the matrices of a quantised GGUF file in its own blocks


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A transformer with its weights and its tokenizer."""

    name: str
    config: TransformerConfig
    params: Params = dataclasses.field(repr=False)
    tokenizer: Tokenizer = dataclasses.field(repr=False)
    positions: Positions | None = None  # those it was trained with; None: not trained on the tags
    fingerprint: str = ""  # of the weights as loaded (fingerprint_of); empty: created here, not loaded
    defaults: Defaults = PLAIN  # how it is meant to be sampled
    source: str = ""  # where it was read from: a whole path, or an id on the Hub; empty: a package, or created here

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype it computes in."""
        return self.params["final_norm"]["weight"].dtype

    @property
    def precision(self) -> str:
        """How it holds its matrices: in a dtype, which may be narrower than its own, or as codes."""
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(self.params["layers"])}
        if BITS in dtypes:
            return jnp.dtype(NARROW).name
        if all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
            return min(dtypes, key=lambda dtype: dtype.itemsize).name
        return BLOCKS if "exact" in self.params["embed"] else CODED

    @property
    def coded(self) -> Params:
        """A matrix that it holds as codes, of a layer if one is; empty: there is none."""
        if is_stacked(self.params):
            return {}
        parts = *self.params["layers"], self.params
        return next((one for part in parts for one in part.values() if isinstance(one, dict) and "codes" in one), {})

    @property
    def is_narrow(self) -> bool:
        """Whether it is laid out to train an adapter beside it and for nothing else (prepare.narrow)."""
        return "gate" in self.params["layers"]

    @property
    def identity(self) -> str:
        """What answers depend on of it: its name, its weights, whether they are codes, and unusual bits of inputs."""
        codes = f" in {self.precision}" if self.precision in (BLOCKS, CODED) else ""
        bits = self.coded.get("bits")
        codes += "" if bits is None else f", inputs of {bits} bits"
        return f"{self.name} {self.fingerprint}{codes}"

    def recorded(self) -> dict[str, str]:
        """What headers of answers name of it: also what another start may change, its precision and template."""
        about = {"model": self.identity}
        if self.precision == "bfloat16":  # the identity says whether it is codes
            about["precision"] = self.precision
        if isinstance(self.tokenizer.template, Template):  # of its file, where a user may change it
            about["template"] = fingerprints.of_texts([self.tokenizer.jinja])
        return about
