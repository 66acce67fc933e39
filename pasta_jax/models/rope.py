"""Rotary positions as plain data: bases, scalings, and the frequencies that follow from them."""

import dataclasses
import math
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import AboveZero, Positive


def later(default: Any) -> Any:
    """A field that models got by and by: it counts for a model's fingerprint where it isn't its default."""
    return dataclasses.field(default=default, metadata={"later": True})


@dataclasses.dataclass(frozen=True)
class Yarn:
    """YaRN (Peng et al., 2023): slow pairs are interpolated by `factor`, fast ones are left alone."""

    factor: AboveZero
    context: Positive  # the original one
    fast: AboveZero = 32.0  # rotations over the original context from which a pair is left alone
    slow: AboveZero = 1.0  # and up to which it is interpolated
    whole: bool = True  # the range of blended pairs begins and ends at whole pairs

    def blend(self, base: float, size: int) -> np.ndarray:
        """How far each of size/2 pairs is interpolated, from 0 to 1."""
        low, high = (
            size * math.log(self.context / (rotations * 2 * math.pi)) / (2 * math.log(base))
            for rotations in (self.fast, self.slow)
        )
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        width = high - low or 0.001
        return np.clip((np.arange(size // 2) - low) / width, 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary positions: base, linear `scale` of the positions, or a scaling that depends on the frequency."""

    base: AboveZero
    scale: AboveZero = 1.0
    # factor, low and high frequency factor, original context
    llama3: tuple[AboveZero, AboveZero, AboveZero, Positive] | None = None
    yarn: Yarn | None = later(None)
    divisors: tuple[AboveZero, ...] | None = later(None)  # of each pair's frequency, as in LongRoPE
    amplitude: AboveZero = later(1.0)  # of cosine and sine: YaRN and LongRoPE sharpen attention by it
    share: Annotated[float, Meta(gt=0, le=1)] = later(1.0)  # of a head that is rotated: its first elements
    of_pairs: bool = later(False)  # `share` is of the pairs of whole heads instead, as in Gemma 4

    def __post_init__(self):
        if self.llama3 is not None and not self.llama3[1] < self.llama3[2]:
            raise PastaError(f"rope: low_freq_factor ({self.llama3[1]}) must be below high_freq_factor; change either")
        if sum(one is not None for one in (self.llama3, self.yarn, self.divisors)) > 1:
            raise PastaError("rope: only one of llama3, yarn and divisors can be set; drop the others")
        if self.of_pairs and (self.llama3 or self.yarn or self.divisors):
            raise PastaError("rope: of_pairs has no scaling that depends on the frequency; drop either")
        if self.yarn is not None and self.base <= 1:
            raise PastaError(f"rope: a base of {self.base} has no frequencies for yarn to tell apart; raise it")

    @np.errstate(all="ignore")  # of numbers that no model has, they may be infinite
    def frequencies(self, head_dim: int) -> np.ndarray:
        """Radians per position of each rotated pair, in float64."""
        size = head_dim if self.of_pairs else int(head_dim * self.share)
        plain = np.array([self.base ** (-2.0 * i / size) / self.scale for i in range(size // 2)])
        if self.of_pairs:
            return np.where(np.arange(size // 2) < int(self.share * head_dim // 2), plain, 0.0)
        if self.divisors is not None:
            return plain / self.divisors
        if self.yarn is not None:
            blend = self.yarn.blend(self.base, size)
            return plain * (blend / self.yarn.factor + 1 - blend)
        if self.llama3 is None:
            return plain
        factor, low, high, context = self.llama3
        rotations = context * plain / (2 * math.pi)  # over the original context
        blend = np.clip((rotations - low) / (high - low), 0.0, 1.0)
        return (1 - blend) * plain / factor + blend * plain
