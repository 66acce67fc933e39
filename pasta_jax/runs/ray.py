"""Tasks on a Ray cluster, or in several processes of this machine: that of a lost worker is computed again."""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Annotated, Any, TypeVar

import msgspec

from pasta_jax.errors import PastaError, brief
from pasta_jax.files.validated import AboveZero, AtLeastZero, Count

IN_ONE_PROCESS = "config.executor=ray: start one process, or leave the executor local in several"
Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class RaySettings:
    """A Ray cluster, and what each of its workers takes."""

    address: str = ""  # of a cluster, auto: one that runs here; empty: that in RAY_ADDRESS, else a new one here
    workers: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0  # at a time on this machine; 0: as many as its CPUs allow
    cpus: AboveZero = 1.0  # of a worker
    gpus: AtLeastZero = 0.0
    tpus: Count = 0  # chips
    retries: Count = 3  # of what a lost worker was doing


@contextlib.contextmanager
def connected(settings: RaySettings, asked: str = "config.executor=ray", least: int = 1) -> Iterator[ModuleType]:
    """Ray, connected to the cluster; within such a block, the same connection, so that workers keep what they load.

    `asked` is the setting that needs Ray, and so many workers at a time at `least`.
    """
    try:
        import ray  # optional, and slow to import
    except ImportError:
        raise PastaError(f"{asked}: Ray is not installed; bash launch/setup.sh --ray") from None
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own, 15, lets any other work starve a server
    address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
    here = {"num_cpus": settings.workers * settings.cpus} if settings.workers and address == "local" else {}
    try:
        # JAX warns of every fork; these start other programs at once.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        ray.init(address=address, include_dashboard=False, logging_level="ERROR", **here)
    except Exception as error:  # Ray raises many kinds when a cluster can't be reached
        raise PastaError(
            f"config.ray.address: {'this machine' if address == 'local' else address}: {brief(error)}"
        ) from None
    try:
        if address == "local":  # any other cluster may grow
            _refuse_too_many(settings, asked, least, ray.cluster_resources())
        yield ray
    finally:
        ray.shutdown()


def _refuse_too_many(settings: RaySettings, asked: str, least: int, here: Mapping[str, float]) -> None:
    """Refuse workers that this machine has no room for: Ray would wait for it for ever."""
    for name, resource in (("cpus", "CPU"), ("gpus", "GPU"), ("tpus", "TPU")):
        each, there = getattr(settings, name), here.get(resource, 0)
        if least * each > there:
            raise PastaError(
                f"config.ray.{name}={each:g}: {asked} needs {least * each:g}, and this machine has {there:g}; lower "
                "one of them, or name a cluster in config.ray.address"
            )


def on_ray(
    settings: RaySettings, compute: Callable[[Task], Outcome], tasks: Sequence[Task]
) -> Iterator[tuple[int, Outcome | PastaError]]:
    """The number of each task with its outcome, in the order in which they end.

    `compute` runs in workers, which import this package and share the folders that the tasks name. What it raises is
    the outcome of its task; the other tasks go on.
    """
    with connected(settings) as ray:
        chips = {"TPU": settings.tpus} if settings.tpus else {}
        options = {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "resources": chips}
        remote = ray.remote(compute).options(max_retries=settings.retries, **options)
        numbers = {remote.remote(task): number for number, task in enumerate(tasks)}
        waiting = list(numbers)
        while waiting:
            [done], waiting = ray.wait(waiting, num_returns=1)
            yield numbers.pop(done), outcome(ray, done)  # Ray keeps an outcome as long as anything refers to it


def together(settings: RaySettings, compute: Callable[[Task], Iterable[Item]], tasks: Sequence[Task]) -> Iterator[Item]:
    """What `compute` returns of all tasks, as they end; the first error ends them."""
    for _, found in on_ray(settings, compute, tasks):
        if isinstance(found, PastaError):
            raise found
        yield from found


def outcome(ray: ModuleType, done: Any) -> Any:
    """What a task that has ended returned, or its error."""
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        return cause if isinstance(cause, PastaError) else PastaError(f"{type(cause).__name__}: {cause}")
    except ray.exceptions.RayError as error:
        return PastaError(f"its worker was lost: {' '.join(str(error).split())[:200]}")
