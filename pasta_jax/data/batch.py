"""What training and scoring read: tokens, labels and structure of packed records, as plain arrays."""

import dataclasses

import jax
import numpy as np

from pasta_jax.lang.structure import visible


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """int32 arrays [B, T]; a row holds one record or several behind each other, then padding."""

    token: np.ndarray  # 0 in padding
    label: np.ndarray  # the token to predict here; NO_LABEL (-1) where nothing is learnt
    position: np.ndarray
    chunk: np.ndarray  # these three as lang/structure.py has them, each record counted by itself
    epoch: np.ndarray
    main: np.ndarray
    record: np.ndarray  # 1, 2, … the record's number in its row; 0: padding


def mask(batch: Batch):
    """bool [B, T, T]: who sees whom; records never see each other. The dense form, obviously right."""
    here, there = (lambda a: a[:, :, None]), (lambda a: a[:, None, :])
    order = np.arange(batch.token.shape[1])
    same = (here(batch.record) == there(batch.record)) & (order[None, :, None] >= order[None, None, :])
    vectors = (batch.chunk, batch.epoch, batch.main)
    return visible(same, *map(here, vectors), *map(there, vectors))
