"""Metrics on disk: JSON lines that survive a kill, and TensorBoard event files."""

import json
import struct
import subprocess
import sys
import time
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog

from pasta_jax import progress
from pasta_jax.runs.metrics import Metrics, read_lines


def read_events(path: Path) -> list[Event]:
    """The events of a file. Each record is a length, its checksum, an Event, and the Event's checksum."""
    data, events = path.read_bytes(), []
    while data:
        length = struct.unpack("<Q", data[:8])[0]
        events.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return events


def scalars(events: list[Event]) -> list[tuple[int, str, float]]:
    return [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]


def test_tensorboard_gets_every_value_under_its_own_tag(tmp_path):
    metrics = Metrics(tmp_path, 0, 400, tensorboard=True)
    metrics.write(1, {"loss": 2.5, "held_out/loss": -1.0})
    metrics.write(300, {"loss": 2.0, "probe/forks": 0.25})
    metrics.close()
    (path,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    events = read_events(path)
    assert events[0].file_version == "brain.Event:2"
    assert scalars(events) == [
        (1, "loss", 2.5),
        (1, "held_out/loss", -1.0),
        (300, "loss", 2.0),
        (300, "probe/forks", 0.25),
    ]
    assert all(event.wall_time > 1.6e9 for event in events if event.summary.value)


def test_between_two_lines_the_step_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_running", [])
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    metrics = Metrics(tmp_path, 2, 5, tensorboard=False)
    assert progress._running[-1].line() == "step: 2 of 5, 0:00 so far"
    metrics.reach(3)
    monkeypatch.setattr(time, "monotonic", lambda: 130.0)
    assert progress._running[-1].line() == "step: 3 of 5, 30.0 s each, 1:00 left"
    metrics.close()
    assert not progress._running


def test_tensorboard_is_imported_only_on_request(tmp_path):
    script = (
        "import sys, pathlib\n"
        "from pasta_jax.runs.metrics import Metrics\n"
        "Metrics(pathlib.Path(sys.argv[1]), 0, 1, tensorboard=False).close()\n"
        "assert 'tensorboardX' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script, tmp_path], check=True)


def test_a_resumed_run_keeps_what_is_earlier_and_nothing_else(tmp_path, capsys):
    """TensorBoard discards the events of older files from the step of a session's start on."""
    first = Metrics(tmp_path, 0, 5, tensorboard=True)
    for step in (1, 2, 3):
        first.write(step, {"loss": step / 2})
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    again = Metrics(tmp_path, 2, 5, tensorboard=True)  # in the same second
    again.write(3, {"loss": 0.25, "loss_sync": 0.125})
    again.close()
    expected = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 1.0}, {"step": 3, "loss": 0.25, "loss_sync": 0.125}]
    assert read_lines(tmp_path / "metrics.jsonl") == expected
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == expected
    assert "step 3/5  loss 0.25  [" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]
    logs = {}
    for path in (tmp_path / "tensorboard").iterdir():
        events = read_events(path)
        (start,) = (event.step for event in events if event.session_log.status == SessionLog.START)
        logs[start] = scalars(events)
    before, after = [(1, "loss", 0.5), (2, "loss", 1.0), (3, "loss", 1.5)], [(3, "loss", 0.25), (3, "loss_sync", 0.125)]
    assert logs == {1: before, 3: after}


def test_lines_after_one_that_is_not_json_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n\0\0\0\n{"step": 3}\n')
    assert read_lines(path) == [{"step": 1}]
    assert read_lines(tmp_path / "none.jsonl") == []
