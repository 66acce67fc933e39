"""The devices that programs run on: a platform that is there, started with one line if it fails, and announced."""

import importlib.util
import os
import re
from collections import Counter
from pathlib import Path

from pasta_jax.errors import PastaError
from pasta_jax.files import container

TPU_FILES = ("dev/accel[0-9]*", "dev/vfio/[0-9]*")  # one per chip, by the driver's kind


def choose(root: Path = Path("/"), quiet: bool = False) -> None:
    """Set JAX_PLATFORMS to cpu where nothing else can be: no TPU, and no plug-in for GPUs or other devices.

    Otherwise an installed libtpu would look for a TPU in every process, log errors and handle the process's signals.
    With `quiet`, XLA logs nothing. Of CPUs it uses as many as the container may. JAX reads all three variables when it
    is imported; a value of the user's stays.
    """
    if quiet:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Simulated devices wait for each other, each in a thread.
    is_simulated = "device_count" in os.environ.get("XLA_FLAGS", "") or "JAX_NUM_CPU_DEVICES" in os.environ
    if (share := container.cpus(root / "sys/fs/cgroup")) < (os.cpu_count() or 1) and not is_simulated:
        os.environ.setdefault("NPROC", str(share))  # XLA starts a thread for each CPU of the machine otherwise
    if "JAX_PLATFORMS" in os.environ or has_tpu(root) or importlib.util.find_spec("jax_plugins") is not None:
        return
    os.environ["JAX_PLATFORMS"] = "cpu"


def has_tpu(root: Path = Path("/")) -> bool:
    """Whether the machine has a TPU's device files."""
    return any(True for pattern in TPU_FILES for _ in root.glob(pattern))


def describe() -> str:
    """Start the devices; their number and kind."""
    import jax

    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a platform is known
        reason = " ".join(str(error).partition("(")[0].split()) or f"no platform {os.environ.get('JAX_PLATFORMS')}"
        raise PastaError(f"no device: {reason.rstrip('.')}; to use the CPU, set JAX_PLATFORMS=cpu") from None
    return f"{len(devices)} x {devices[0].device_kind} ({jax.default_backend()})"


def machine() -> str:
    """The devices and the CPUs: what seconds depend on."""
    path = Path("/proc/cpuinfo")
    cores = re.findall(r"^model name\s*: (.*)$", path.read_text(), re.MULTILINE) if path.exists() else []
    return ", ".join([describe(), *(f"{count} x {core}" for core, count in Counter(cores).items())])
