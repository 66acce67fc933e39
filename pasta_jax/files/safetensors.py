"""Write safetensors files, whole or not at all."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from pasta_jax.files.atomic import replacing


def write(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """One file of contiguous copies of the tensors."""
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    with replacing(path) as part:
        part.touch()
        mode = part.stat().st_mode  # as the umask allows; save_file's own is for the owner alone
        try:
            save_file(tensors, part, metadata=metadata)
            part.chmod(mode)
        except SafetensorError as error:  # a full disk too
            raise OSError(str(error)) from None
