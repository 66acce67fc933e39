"""Which devices a mesh has, in which order."""

import dataclasses

import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.models.settings import MeshSettings, TrainingMeshSettings
from pasta_jax.models.sharding import decoding_mesh, make_mesh, training_mesh


@dataclasses.dataclass(frozen=True)
class Chip:
    """One of several hosts', in JAX's order by the network between them."""

    process_index: int
    id: int


@pytest.mark.parametrize(("data", "model"), [(8, 1), (4, 2), (2, 4)])
def test_rows_divide_over_processes_in_their_order(data, model):
    """As `shard_rows` and Feed divide them: a process that passed other rows would mix up the batch."""
    chips = [Chip(process, 4 * row + 2 * process + column) for row, process, column in np.ndindex(2, 2, 2)]
    mesh = make_mesh(data, model, chips)
    assert mesh.axis_names == ("data", "model")
    owners = [{chip.process_index for chip in row} for row in mesh.devices]
    assert owners == [{0}] * (data // 2) + [{1}] * (data // 2)


def test_a_config_names_a_mesh_or_one_device():
    def shape(*settings):
        mesh = decoding_mesh(MeshSettings(*settings))
        return mesh and dict(mesh.shape)

    assert shape(1, 1) is None
    assert shape(0, 1) == {"data": 8, "model": 1}
    assert shape(0, 2) == {"data": 4, "model": 2} == shape(4, 2)
    assert dict(training_mesh(TrainingMeshSettings(0, 2, True)).shape) == {"fsdp": 4, "model": 2}
    assert dict(decoding_mesh(TrainingMeshSettings(0, 2, True)).shape) == {"data": 4, "model": 2}
    for wrong in ((2, 2), (0, 3), (0, 16)):
        with pytest.raises(PastaError, match="8 devices available; choose data and model with this product"):
            shape(*wrong)
    for data, model in ((3, 2), (0, 8)):
        with pytest.raises(PastaError, match=f"mesh {data} x {model}: 8 devices available"):
            make_mesh(data, model)
