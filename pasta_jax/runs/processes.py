"""The processes that run one command together, on one host or many: joined, watched, and stopped at the same step.

A TPU has a process on each of its hosts, and SLURM and Kubernetes start several, which are found where GPUs are.
Elsewhere each process is told its number and where the first one listens. A process that ends or falls silent ends
all others: what they compute needs all of them. The next start resumes from the newest checkpoint.
"""

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from absl import flags

from pasta_jax.device.platform import has_tpu
from pasta_jax.errors import PastaError, one_line
from pasta_jax.progress import say

Item = TypeVar("Item")
Result = TypeVar("Result")

COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "several processes: address of the first, the same for all, as --coordinator=10.0.0.2:8476; TPU hosts, and GPUs "
    "under SLURM and Kubernetes, need none of these three flags",
)
PROCESSES = flags.DEFINE_integer("processes", None, "several processes: how many, as --processes=4", lower_bound=1)
PROCESS = flags.DEFINE_integer(
    "process", None, "several processes: the number of this one, as --process=0", lower_bound=0
)

SCRIPTS = ("sft", "preference", "annotate", "decode", "evaluate")  # that several processes can run together
BEAT_S = 2.0  # between two signs of life
LOST_S = 30.0  # of silence, after which a process is lost
JOIN_S = 300  # for all processes to arrive
EXIT_LOST = 3  # the exit code of a process that another one's end stops, as for other errors that a rerun resumes
_ALIVE, _STOP, _TOLD, _SENT = (f"pasta_jax/{name}" for name in ("alive", "stop", "told", "sent"))
POLL_S = 0.2  # between two looks for what other processes send
WEEK_MS = 7 * 24 * 3600 * 1000  # longer than any wait for a process that lives
_left: list[Any] = []  # what must not be destroyed before the process ends
_loops, _tellings, _gatherings = itertools.count(), itertools.count(), itertools.count()
_DONE, _FAILED = "done", "failed: "


def flags_of(script: str) -> list[flags.Flag]:
    """The flags of a script that several processes can run."""
    return [flags.FLAGS[one.name] for one in (COORDINATOR, PROCESSES, PROCESS) if script in SCRIPTS]


@contextlib.contextmanager
def joined(script: str) -> Iterator[None]:
    """Run the block as one of several processes, if the flags or the surroundings say so."""
    where = _arguments()
    if where is None and not is_started_by_a_cluster(os.environ):
        yield
        return
    import jax

    # fit.StopSignal handles SIGTERM; XLA's handler would take it away.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **(where or {}),
            initialization_timeout=JOIN_S,
            heartbeat_timeout_seconds=int(2 * LOST_S),
            shutdown_timeout_seconds=int(LOST_S),
        )
    except (ValueError, RuntimeError) as error:
        if where is None and isinstance(error, ValueError) and not has_tasks(os.environ):
            yield  # a TPU that belongs to no cluster, as in a notebook
            return
        reason = one_line(" ".join(str(error).split()))
        fix = "see --coordinator in --help"
        if where is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            fix = "pip install kubernetes, or for one pod --coordinator=localhost:8476 --processes=1 --process=0"
        raise PastaError(f"the processes did not find each other ({reason}); {fix}") from None
    if count() == 1:
        yield
        return
    if script not in SCRIPTS:
        several = f"{', '.join(SCRIPTS[:-1])} and {SCRIPTS[-1]}"
        raise PastaError(f"{script}: runs in one process, not in {count()}; only {several} can run in several")
    say(f"process {number()} of {count()}")
    watch = _Watch(_client(), number(), count())
    watch.start()
    try:
        _meet()
        yield
    except SystemExit:  # it was stopped, and the others with it
        watch.end(_DONE)
        raise
    except PastaError as error:
        watch.end(f"{_FAILED}{error}")
        _leave()
        raise
    except BaseException as error:
        watch.blame(LOST_S + 5 * BEAT_S)  # a process that is lost breaks what the others compute
        watch.end(f"{_FAILED}{one_line(' '.join(repr(error).split()))}")
        _leave()
        raise
    else:
        watch.end(_DONE)


def _arguments() -> dict[str, Any] | None:
    """Where the processes meet, by the flags; None: they are not set."""
    values = {"coordinator": COORDINATOR.value, "processes": PROCESSES.value, "process": PROCESS.value}
    missing = [f"--{name}" for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        raise PastaError(f"{missing[0]} is missing: set --coordinator, --processes and --process together")
    if PROCESS.value >= PROCESSES.value:
        raise PastaError(f"--process={PROCESS.value}: processes are numbered from 0 to {PROCESSES.value - 1}")
    if ":" not in COORDINATOR.value:
        raise PastaError(f"--coordinator={COORDINATOR.value}: needs a port, as {COORDINATOR.value}:8476")
    return {
        "coordinator_address": COORDINATOR.value,
        "num_processes": PROCESSES.value,
        "process_id": PROCESS.value,
        "cluster_detection_method": "deactivate",
    }


def is_started_by_a_cluster(environment: Mapping[str, str]) -> bool:
    """Whether several processes may have been started together: on a TPU's hosts, by srun, or as a Kubernetes job."""
    if environment.get("JAX_PLATFORMS", "").startswith("cpu"):
        return False
    return has_tpu() or has_tasks(environment)


def has_tasks(environment: Mapping[str, str]) -> bool:
    """Whether a scheduler says that it has started several processes, or may have."""
    # A batch script has the variables of a task too, but no step.
    slurm = int(environment.get("SLURM_NTASKS") or 1) > 1 and "SLURM_STEP_NODELIST" in environment
    kubernetes = "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment
    return slurm or kubernetes


def _meet() -> None:
    """Connect the devices while all processes wait for it: later, one of them may be too late for the others."""
    from jax.experimental import multihost_utils

    _client().wait_at_barrier("pasta_jax/meet", 1000 * JOIN_S)
    multihost_utils.sync_global_devices("pasta_jax")


def _leave() -> None:
    """End without the others: at the interpreter's exit, JAX would wait for them, and then abort."""
    state = _state()
    _left.append((state.client, state.service))
    state.client = state.service = None


def agreed(stopping: Callable[[], bool]) -> Callable[[], bool]:
    """`stopping` for a loop whose processes call it once before each step: all stop before the same one.

    A process may be one step ahead of another, not two: a step needs all of them. So whoever wants to stop names the
    second next call, which nobody has reached yet.
    """
    import jax

    if jax.process_count() == 1:
        return stopping
    client, calls, key = _client(), itertools.count(), f"{_STOP}/{next(_loops)}"

    def together() -> bool:
        call = next(calls)
        if stopping():
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was first
                client.key_value_set(key, str(call + 2))
        try:
            return call >= int(client.key_value_try_get(key))
        except jax.errors.JaxRuntimeError:  # not there
            return False

    return together


def number() -> int:
    """Of this process, from 0."""
    return _state().process_id


def count() -> int:
    """How many processes run this command. Unlike jax.process_count it starts no device."""
    return _state().num_processes


def is_first() -> bool:
    """Whether this is the only process, or the one that reads and writes files."""
    return number() == 0


def told(value: Item, kind: Any) -> Item:
    """What the first process says, of some type; the others wait for it. All processes call it equally often."""
    if count() == 1:
        return value
    key = f"{_TOLD}/{next(_tellings)}"
    if is_first():
        _client().key_value_set(key, msgspec.json.encode(value).decode())
        return value
    text = _client().blocking_key_value_get(key, WEEK_MS)
    if _client().key_value_increment(f"{key}/read", 1) == count() - 1:
        _client().key_value_delete(key)  # with what is below it; the first process would keep all answers to the end
    return msgspec.json.decode(text, type=kind)


def share(items: Sequence[Item]) -> Sequence[Item]:
    """This process's share of the work."""
    return items[number() :: count()]


def spread(items: Sequence[Item], compute: Callable[[Sequence[Item]], Iterator[Result]], kind: Any) -> Iterator[Result]:
    """What `compute` yields of this process's share; in the first one also what the others send it, as it comes.

    All processes call it equally often. One may be at a later call than the first, which finds what that one sent then.
    """
    mine = share(items)
    own = compute(mine) if mine else iter(())
    if count() == 1:
        return own
    folder = f"{_SENT}/{next(_gatherings)}/"
    return _received(own, len(items), kind, folder) if is_first() else _sent(own, folder)


def _sent(own: Iterator[Item], folder: str) -> Iterator[Item]:
    """The results of this process, each sent to the first one."""
    for sending, item in enumerate(own):
        _client().key_value_set(f"{folder}{number()}-{sending}", msgspec.json.encode(item).decode())
        yield item


def _received(own: Iterator[Item], total: int, kind: type[Item], folder: str) -> Iterator[Item]:
    """The results of the first process, and those that others have sent."""
    while total > 0:
        several = list(itertools.islice(own, 1))
        for key, text in _client().key_value_dir_get(folder):
            _client().key_value_delete(key)
            several.append(msgspec.json.decode(text, type=kind))
        total -= len(several)
        yield from several
        if not several:
            time.sleep(POLL_S)


def _state() -> Any:
    # JAX has no public way to the processes' shared values. multihost_utils broadcasts and gathers by programs that all
    # devices run at the same time; here no device may have started, and one process may be far ahead of another.
    from jax._src import distributed

    return distributed.global_state


def _client() -> Any:
    return _state().client


class _Watch(threading.Thread):
    """Gives signs of life, and ends this process in one line when another one is lost or has failed."""

    def __init__(self, client: Any, process: int, processes: int):
        super().__init__(name="watch of the other processes", daemon=True)
        self._client, self._process, self._processes = client, process, processes
        self._state = ""  # empty: alive
        self._beats = itertools.count()
        self._heard: dict[int, tuple[str, float]] = {}  # what each process said last, and when that was new

    def run(self) -> None:
        while not self._state:
            self._stop_if(self._problem())
            time.sleep(BEAT_S)

    def end(self, state: str) -> None:
        """Tell the others how this process ended; a good end waits for theirs."""
        self._state = state
        while not (problem := self._problem()) and state == _DONE and not self._all_done():
            time.sleep(BEAT_S / 4)
        if state == _DONE:
            self._stop_if(problem)
        else:
            time.sleep(2 * BEAT_S)  # they read it

    def blame(self, seconds: float) -> None:
        """Wait so long for another process to prove lost, which ends this one."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and self.is_alive():
            time.sleep(BEAT_S / 4)

    def _stop_if(self, problem: str) -> None:
        if problem:
            say(f"error: {problem}; all processes stop: rerun the command on all of them to resume")
            sys.stdout.flush()
            os._exit(EXIT_LOST)  # the main thread may wait for the other process forever

    def _all_done(self) -> bool:
        return len(self._heard) == self._processes and all(said == _DONE for said, _ in self._heard.values())

    def _problem(self) -> str:
        """What ended another process; empty: nothing."""
        try:
            said = self._state or str(next(self._beats))
            self._client.key_value_set(f"{_ALIVE}/{self._process}", said, allow_overwrite=True)
            values = self._client.key_value_dir_get(f"{_ALIVE}/")
        except Exception as error:  # the first process keeps the values
            return "" if self._state else f"process 0 can't be reached ({type(error).__name__})"
        now = time.monotonic()
        for key, said in values:
            process = int(key.rpartition("/")[2])
            before, since = self._heard.get(process, ("", now))
            self._heard[process] = (said, since if said == before else now)
        for process, (said, since) in sorted(self._heard.items()):
            if process != self._process and said.startswith(_FAILED):
                return f"process {process} {said}"
            if process != self._process and said != _DONE and now - since > LOST_S:
                return f"process {process} is lost: no sign of life for {LOST_S:.0f} s"
        return ""
