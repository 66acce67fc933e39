"""The environment of a process that compiles for TPUs without one; set before JAX is imported. Imports no JAX."""

import importlib.util
import os

from pasta_jax.errors import PastaError

# JAX and libtpu read these when they load: arrays stay on the CPU, no metadata server is queried, no log files are
# written to the temporary folder, and several processes may compile at once.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def prepare() -> None:
    """Set the environment; refused without the TPU compiler."""
    if importlib.util.find_spec("libtpu") is None:
        raise PastaError("the TPU compiler is not installed: bash launch/setup.sh --tpu")
    os.environ.update(ENVIRONMENT)
