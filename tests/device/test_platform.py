"""The platform is one that is there, the user's choice stays, and a device that does not start is one line."""

import jax
import pytest

from pasta_jax.device import platform
from pasta_jax.errors import PastaError


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(platform.importlib.util, "find_spec", lambda name: None)


def chosen(root) -> str | None:
    platform.choose(root)
    return platform.os.environ.get("JAX_PLATFORMS")


def test_a_machine_without_a_tpu_runs_on_the_cpu(tmp_path):
    (tmp_path / "dev/vfio").mkdir(parents=True)
    (tmp_path / "dev/vfio/vfio").touch()  # the driver, without a device
    assert chosen(tmp_path) == "cpu"


@pytest.mark.parametrize("file", ["accel0", "vfio/0"])
def test_jax_chooses_where_a_tpu_may_be(tmp_path, file):
    (tmp_path / "dev/vfio").mkdir(parents=True)
    (tmp_path / "dev" / file).touch()
    assert chosen(tmp_path) is None


def test_jax_chooses_where_a_plug_in_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(platform.importlib.util, "find_spec", lambda name: object())
    assert chosen(tmp_path) is None


def test_the_users_choice_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    assert chosen(tmp_path) == "tpu"


def test_a_device_that_does_not_start_is_one_line(monkeypatch):
    def fails():
        raise RuntimeError(
            "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use.\n (set JAX_PLATFORMS='' to …)"
        )

    monkeypatch.setattr(jax, "devices", fails)
    with pytest.raises(PastaError) as refused:
        platform.describe()
    assert str(refused.value) == (
        "no device: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use; "
        "to use the CPU, set JAX_PLATFORMS=cpu"
    )


def test_a_platform_that_jax_does_not_know_is_one_line(monkeypatch):
    def fails():
        raise AssertionError

    monkeypatch.setenv("JAX_PLATFORMS", "npu")
    monkeypatch.setattr(jax, "devices", fails)
    with pytest.raises(PastaError, match=r"^no device: no platform npu; to use the CPU, set JAX_PLATFORMS=cpu$"):
        platform.describe()
