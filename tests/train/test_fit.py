"""Training in a folder: resumed, stopped, refused, closed also on errors."""

import hashlib
import os
import signal

import jax
import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.runs.checkpoint import Checkpoints
from pasta_jax.runs.metrics import Metrics
from pasta_jax.train.fit import StopSignal
from tests.helpers.forked import Forked
from tests.train.test_loop import fit_in, fresh, lines, points


@pytest.mark.parametrize("stop", [1, 4, 8])
def test_a_stopped_run_resumes_and_ends_as_if_uninterrupted(tmp_path, capsys, stop):
    whole = fit_in(tmp_path / "whole")
    assert (whole.complete, whole.step, whole.steps) == (True, 9, 9)
    stopped = fit_in(tmp_path / "parts", stop_after=stop)
    assert (stopped.complete, stopped.step, stopped.steps) == (False, stop, 9)
    read: list[int] = []
    resumed = fit_in(tmp_path / "parts", batch=lambda seed, step: read.append(step) or points(seed, step))
    assert min(read) == stop, "earlier steps are not taken again"
    messages = capsys.readouterr().err.splitlines()
    assert messages == [
        f"stopped at step {stop} of 9, saved; rerun the command to resume",
        f"resuming from step {stop} of 9",
    ]
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_a_finished_run_returns_its_state_and_metrics_again(tmp_path):
    first, again = fit_in(tmp_path), fit_in(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, again.state, first.state)
    assert again.metrics == first.metrics
    written = lines(tmp_path)
    assert written[-1]["held_out/loss"] == first.metrics["held_out/loss"]
    assert [line["loss"] for line in written if "loss" in line][-1] == first.metrics["loss"]
    assert "step" not in first.metrics


def test_a_resumed_run_has_one_state_in_memory(tmp_path):
    """Its caller still refers to that before the first step."""
    fit_in(tmp_path, stop_after=4)
    first = fresh()

    def batch(seed: int, step: int) -> dict:
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
        return points(seed, step)

    assert fit_in(tmp_path, first=first, batch=batch).complete


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    fit_in(tmp_path, stop_after=4)
    with pytest.raises(PastaError, match="was started on other data; use another folder, or the original data"):
        fit_in(tmp_path, data="other points")


def test_files_are_closed_after_errors(tmp_path, monkeypatch):
    closed = []
    for cls in (Metrics, Checkpoints):
        close = cls.close
        monkeypatch.setattr(cls, "close", lambda self, close=close: (closed.append(type(self).__name__), close(self)))

    def broken(seed: int, step: int):
        raise PastaError("no data")

    with pytest.raises(PastaError, match="no data"):
        fit_in(tmp_path, batch=broken)
    assert closed == ["Metrics", "Checkpoints"]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_noticed_within_the_block_only(number, exit_code, capfd, sigint):
    numbers = signal.SIGINT, signal.SIGTERM
    former = [signal.getsignal(each) for each in numbers]
    stop = StopSignal()
    with stop.watch() as stopping:
        assert not stopping()
        assert stop.exit_code == 143  # where another process of the run gets the signal
        signal.raise_signal(number)
        assert stopping()
        assert stop.exit_code == exit_code
    assert stop.finished(()) == ()
    with pytest.raises(SystemExit, match=str(exit_code)):
        stop.finished(None)
    message = f"{signal.Signals(number).name}: saving and stopping; a second signal ends without saving\n"
    assert capfd.readouterr().err == message
    assert [signal.getsignal(each) for each in numbers] == former
    with StopSignal().watch() as stopping:
        assert not stopping()


def blocked() -> None:
    """A step: a call that returns to Python much later."""
    with StopSignal().watch():
        os.write(2, b"in a step\n")
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**8)


@pytest.mark.slow
def test_signals_are_heeded_within_a_step(tmp_path):
    process = Forked(tmp_path, blocked)
    for number, expected in enumerate(("in a step", "SIGTERM: saving and stopping")):
        while expected not in process.errors():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert number or process.poll() is None
    process.finish(143)


def test_an_ignored_signal_stays_ignored(sigint):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignal().watch() as stopping:
        signal.raise_signal(signal.SIGINT)
        assert not stopping()
