"""Figures on disk: lines that go on after a kill, and event files that a protocol buffer reader reads."""

import json
import struct

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pasta_jax.events import checksum, crc32c
from pasta_jax.metrics import Metrics, read_lines

Field = descriptor_pb2.FieldDescriptorProto


def event_class():
    """TensorBoard's Event, as far as we write it, made anew from its published form."""
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t", syntax="proto3")
    messages = {
        "Value": [("tag", 1, Field.TYPE_STRING, ""), ("simple_value", 2, Field.TYPE_FLOAT, "")],
        "Summary": [("value", 1, Field.TYPE_MESSAGE, ".t.Value")],
        "SessionLog": [("status", 1, Field.TYPE_INT32, "")],
        "Event": [
            ("wall_time", 1, Field.TYPE_DOUBLE, ""),
            ("step", 2, Field.TYPE_INT64, ""),
            ("file_version", 3, Field.TYPE_STRING, ""),
            ("summary", 5, Field.TYPE_MESSAGE, ".t.Summary"),
            ("session_log", 7, Field.TYPE_MESSAGE, ".t.SessionLog"),
        ],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            label = Field.LABEL_REPEATED if (name, field) == ("Summary", "value") else Field.LABEL_OPTIONAL
            message.field.add(name=field, number=number, type=kind, label=label, type_name=of or None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))


def events(path) -> list:
    """Read back, every checksum looked at."""
    data, found, event = path.read_bytes(), [], event_class()
    while data:
        length = struct.unpack("<Q", data[:8])[0]
        assert data[8:12] == checksum(data[:8])
        assert data[12 + length : 16 + length] == checksum(data[12 : 12 + length])
        found.append(event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_checksums_have_published_values():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"") == 0


def test_events_are_what_a_reader_expects(tmp_path):
    metrics = Metrics(tmp_path, 3, 400, tensorboard=True)
    metrics.write(4, {"loss": 2.5, "held_out/loss": -1.0})
    metrics.write(300, {"loss": 2.0})
    metrics.close()
    (path,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    version, start, *rest = events(path)
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (4, 1)
    said = [(one.step, {value.tag: value.simple_value for value in one.summary.value}) for one in rest]
    assert said == [(4, {"loss": 2.5, "held_out/loss": -1.0}), (300, {"loss": 2.0})]
    assert all(one.wall_time > 1.6e9 for one in (version, *rest))


def test_a_run_that_goes_on_keeps_what_was_before_and_nothing_else(tmp_path, capsys):
    first = Metrics(tmp_path, 0, 5, tensorboard=False)
    for step in (1, 2, 3):
        first.write(step, {"loss": step / 3})
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    again = Metrics(tmp_path, 2, 5, tensorboard=False)
    again.write(3, {"loss": 0.5, "loss_sync": 0.25})
    again.close()
    wanted = [{"step": 1, "loss": 1 / 3}, {"step": 2, "loss": 2 / 3}, {"step": 3, "loss": 0.5, "loss_sync": 0.25}]
    assert read_lines(tmp_path / "metrics.jsonl") == wanted
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == wanted
    assert "step 3/5  loss 0.5  [" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl"]
