"""The input of training and scoring: tokens, labels and structure of packed records, as plain arrays."""

import dataclasses

import jax
import numpy as np

from pasta_jax.lang.structure import Place, visible


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """int32 arrays [B, T]; a batch row holds one or more records, one after another, then padding."""

    token: np.ndarray  # 0 in padding
    label: np.ndarray  # the token to predict here; NO_LABEL (-1) where there is no loss
    position: np.ndarray
    chunk: np.ndarray  # chunk, epoch and main as in lang/structure.py, counted separately for each record
    epoch: np.ndarray
    main: np.ndarray
    record: np.ndarray  # 1, 2, …: the record's number in its batch row; 0: padding

    @property
    def place(self) -> Place:
        """Chunk, epoch and main."""
        return Place(self.chunk, self.epoch, self.main)


def mask(batch: Batch) -> np.ndarray | jax.Array:
    """The attention mask, bool [B, T, T], in its dense form; records never see each other."""
    same_record = batch.record[:, :, None] == batch.record[:, None, :]
    present = same_record & np.tri(batch.token.shape[1], dtype=bool)[None]
    return visible(present, batch.place.queries(), batch.place.keys())
