"""The pins have a wheel for every Python and platform that setup.sh takes. Only Linux on x86-64 is run by the tests."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement

from tests import ROOT

SOURCES_ONLY = {"promise", "langdetect"}  # pure Python, which pip builds anywhere
PLATFORMS = {
    ("linux", "x86_64"): [f"manylinux_2_{minor}_x86_64" for minor in range(5, 36)],
    ("linux", "aarch64"): [f"manylinux_2_{minor}_aarch64" for minor in range(17, 36)],
    ("darwin", "arm64"): [f"macosx_{major}_0_{kind}" for major in range(11, 15) for kind in ("arm64", "universal2")],
}


def pins(python: str, system: str, machine: str) -> Iterator[str]:
    """The pins that hold on a platform."""
    place = {"python_version": python, "python_full_version": f"{python}.0"}
    place |= {"sys_platform": system, "platform_machine": machine, "platform_system": system.capitalize()}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if text := line.partition("#")[0].strip():
            pin = Requirement(text)
            if pin.name not in SOURCES_ONLY and (pin.marker is None or pin.marker.evaluate(place)):
                yield f"{pin.name}{pin.specifier}"


@pytest.mark.extended
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize(("system", "machine"), PLATFORMS)
def test_every_pin_has_a_wheel(python, system, machine, tmp_path):
    (tmp_path / "pins.txt").write_text("\n".join(pins(python, system, machine)))
    # This pip checks Requires-Python of what it has found against itself, too.
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-requires-python"]
    command += ["--quiet", "--ignore-installed", "--only-binary=:all:", f"--target={tmp_path / 'none'}"]
    command += [f"--python-version={python}", f"--requirement={tmp_path / 'pins.txt'}"]
    command += [f"--platform={tag}" for tag in PLATFORMS[system, machine]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
