"""TensorBoard's event files, written without TensorFlow: a few protocol buffer fields in checksummed records.

record   length (8 bytes), its checksum (4), an Event, its checksum (4)
Event    1 time (double)  2 step (varint)  3 version (string)  5 Summary  7 SessionLog
Summary  1 Value, repeated: 1 tag (string)  2 value (float)
"""

import struct
import time
from pathlib import Path

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # how protocol buffers lay a field out


class EventFile:
    """One file of events. TensorBoard drops what older files of the folder say of `start` and later steps."""

    def __init__(self, folder: Path, start: int):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"events.out.tfevents.{time.time_ns()}.pasta_jax").open("wb")
        self._event(_field(3, _BYTES, b"brain.Event:2"))
        self._event(_field(2, _VARINT, start) + _field(7, _BYTES, _field(1, _VARINT, 1)))  # a session starts

    def write(self, step: int, values: dict[str, float]) -> None:
        """One number for each tag."""
        summary = b""
        for tag, value in values.items():
            one = _field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, struct.pack("<f", value))
            summary += _field(1, _BYTES, one)
        self._event(_field(2, _VARINT, step) + _field(5, _BYTES, summary))

    def close(self) -> None:
        self._file.close()

    def _event(self, fields: bytes) -> None:
        event = _field(1, _FIXED64, struct.pack("<d", time.time())) + fields
        length = struct.pack("<Q", len(event))
        self._file.write(length + checksum(length) + event + checksum(event))
        self._file.flush()


def _field(number: int, layout: int, value) -> bytes:
    key = _varint(number << 3 | layout)
    if layout == _VARINT:
        return key + _varint(value)
    return key + (_varint(len(value)) if layout == _BYTES else b"") + value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _table() -> list[int]:
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        entries.append(entry)
    return entries


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def checksum(data: bytes) -> bytes:
    """As records hold it: turned and moved on, so that a checksum of checksums is worth something."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
