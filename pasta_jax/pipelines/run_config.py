"""The settings of a training run, kept in its workdir: it resumes with those that it was started with."""

from pathlib import Path
from typing import Any

from pasta_jax.errors import PastaError
from pasta_jax.files import write_json
from pasta_jax.outside import MIB, read_json

CONFIG = "config.json"
# Settings that may change when a run resumes: they don't change what it computes.
FREE = ("every", "keep", "probe", "tensorboard", "mesh", "adapter.dtype", "defaults")


def write(workdir: Path, plain: dict[str, Any]) -> None:
    """Record the settings of a run, as plain data."""
    write_json(workdir / CONFIG, plain)


def refuse_other(workdir: Path, plain: dict[str, Any]) -> None:
    """Refuse to resume a run with settings under which it would have computed something else."""
    path = workdir / CONFIG
    if not path.is_file():
        return
    fix = "use another workdir"
    try:
        earlier = _flat(read_json(path, dict[str, Any], most=MIB, fix=fix))
    except RecursionError:
        raise PastaError(f"{path}: nested too deeply; {fix}") from None
    for name, value in _flat(plain).items():
        if not {name, name.split(".")[0]} & set(FREE) and earlier.get(name) != value:
            raise PastaError(
                f"{workdir}: was started with config.{name} {earlier.get(name)}, now it is {value}; "
                "use another workdir, or the original command"
            )


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by their dotted names."""
    values: dict[str, Any] = {}
    for name, value in plain.items():
        values |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return values
