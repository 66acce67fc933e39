"""The platform is one that is there, the user's choice stays, and a device that does not start is one line."""

import jax
import pytest

from pasta_jax.device import platform
from pasta_jax.errors import PastaError


@pytest.mark.parametrize(
    ("files", "plugin", "before", "chosen"),
    [
        (["vfio/vfio"], None, None, "cpu"),  # the driver, without a device
        (["accel/accel0"], None, None, "cpu"),  # of another maker
        (["accel0"], None, None, None),
        (["vfio/0"], None, None, None),
        ([], object(), None, None),
        ([], None, "tpu", "tpu"),
    ],
)
def test_the_cpu_is_chosen_where_nothing_else_can_be(tmp_path, monkeypatch, files, plugin, before, chosen):
    monkeypatch.delenv("JAX_PLATFORMS")
    if before:
        monkeypatch.setenv("JAX_PLATFORMS", before)
    monkeypatch.setattr(platform.importlib.util, "find_spec", lambda name: plugin)
    (tmp_path / "dev/vfio").mkdir(parents=True)
    for file in files:
        (tmp_path / "dev" / file).parent.mkdir(exist_ok=True)
        (tmp_path / "dev" / file).touch()
    platform.choose(tmp_path)
    assert platform.os.environ.get("JAX_PLATFORMS") == chosen


@pytest.mark.parametrize(
    ("quota", "flags", "before", "threads"),
    [
        ("max 100000", "", None, None),
        ("250000 100000", "", None, "2"),
        ("250000 100000", "", "5", "5"),
        ("250000 100000", "--xla_force_host_platform_device_count=8", None, None),
        ("900000 100000", "", None, None),
    ],
)
def test_xla_has_as_many_threads_as_the_quota_allows(tmp_path, monkeypatch, quota, flags, before, threads):
    monkeypatch.delenv("NPROC")
    monkeypatch.setenv("XLA_FLAGS", flags)
    if before:
        monkeypatch.setenv("NPROC", before)
    monkeypatch.setattr(platform.os, "cpu_count", lambda: 8)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota)
    platform.choose(tmp_path)
    assert platform.os.environ.get("NPROC") == threads


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            RuntimeError("Unable to initialize backend 'tpu': ABORTED: It is in use.\n (set JAX_PLATFORMS='' to …)"),
            "Unable to initialize backend 'tpu': ABORTED: It is in use",
        ),
        (AssertionError(), "no platform npu"),
    ],
)
def test_a_device_that_does_not_start_is_one_line(monkeypatch, error, line):
    def fails():
        raise error

    monkeypatch.setattr(jax, "devices", fails)
    monkeypatch.setenv("JAX_PLATFORMS", "npu")
    with pytest.raises(PastaError) as refused:
        platform.describe()
    assert str(refused.value) == f"no device: {line}; to use the CPU, set JAX_PLATFORMS=cpu"
