"""Which devices share the work on a model, as configs state it; one device needs no mesh."""

import dataclasses

from pasta_jax.files.validated import Count, Positive


@dataclasses.dataclass(frozen=True)
class MeshSettings:
    """The devices that a model decodes on: by default one of them."""

    data: Count = 1  # devices that share lanes; 0: all that `model` leaves
    model: Positive = 1  # devices that share each layer, by heads, rows of the MLP and of the vocabulary


@dataclasses.dataclass(frozen=True)
class TrainingMeshSettings(MeshSettings):
    """The devices that a model is trained on: by default all of them."""

    data: Count = 0  # devices that share the rows of a batch; 0: all that `model` leaves
    fsdp: bool = False  # divide parameters and moments over `data` too: less memory, more traffic
