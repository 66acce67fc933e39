"""What rows cost: which widths are nearly free, how many rows a step has room for, and that it is measured once."""

import pytest

from pasta_jax.device.width import Width, cleaned, width_of

FOUR_BITS = {1: 6.4, 2: 6.9, 4: 9.3, 8: 16.4, 16: 32.0}


def width(ms: dict[int, float]) -> Width:
    return Width(tuple(sorted(ms.items())))


@pytest.mark.parametrize(("share", "rows"), [(1.0, 1), (1.1, 2), (1.25, 2), (1.5, 4), (100, 16)])
def test_near_free(share, rows):
    assert width(FOUR_BITS).near_free(share) == rows


def test_the_best_size_has_most_rows_per_second():
    assert width(FOUR_BITS).best == 16
    assert width({1: 10, 2: 19, 4: 41}).best == 2


def test_no_step_takes_longer_than_a_wider_one():
    assert cleaned({4: 5.0, 1: 3.0, 2: 9.0, 8: 12.0}) == ((1, 3.0), (2, 5.0), (4, 5.0), (8, 12.0))


def test_a_program_is_measured_once_on_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path))
    measured = []

    def measure() -> dict[int, float]:
        measured.append(1)
        return {2: 3.0, 1: 2.5}

    first = width_of({"program": "a"}, measure)
    assert width_of({"program": "a"}, measure) == first == width({1: 2.5, 2: 3.0})
    assert len(measured) == 1
    width_of({"program": "b"}, measure)
    assert len(measured) == 2
    for kept in tmp_path.rglob("*.json"):
        kept.write_text("{")
    assert width_of({"program": "a"}, measure) == first
    assert len(measured) == 3


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path))
    (tmp_path / "widths").touch()
    assert width_of({"program": "a"}, lambda: {1: 2.5, 2: 3.0}) == width({1: 2.5, 2: 3.0})
    assert f"what rows cost is not kept for later runs: {tmp_path}/widths/" in capsys.readouterr().err
