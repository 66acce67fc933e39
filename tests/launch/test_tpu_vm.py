"""launch/tpu_vm.sh: what it prints with --dry-run, and what it does with a gcloud that plays a TPU on this machine."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

SCRIPT = ROOT / "launch/tpu_vm.sh"
TRAIN = ["python", "-m", "launch.sft", "--workdir=gs://b/toy"]

# A gcloud whose answers are lines of a file, one for each time that it is asked for a state; ssh runs on this machine.
GCLOUD = r"""#!/usr/bin/env bash
all=$*
printf '%s\n' "$all" >>"$HOME/calls"
answer() { head -n 1 "$HOME/$1" && sed -i 1d "$HOME/$1"; }
case $all in
  *queued-resources\ describe*) line=$(answer requests); [[ $line != absent ]] && echo "$line" ;;
  *tpu-vm\ describe*) answer tpus ;;
  *uv\ python*) ;;
  *tpu-vm\ ssh*) cd "$HOME" && bash -c "${all##*--command=}" ;;
esac
"""


@pytest.fixture
def home(tmp_path) -> Path:
    """The home folder of the one host, where pasta_jax is installed, and of gcloud."""
    for name in ("bin", "pasta_jax/.venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "pasta_jax/.venv/bin/activate").write_text("")
    for name in ("gcloud", "xpk"):
        (tmp_path / "bin" / name).write_text(GCLOUD)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "calls").touch()
    return tmp_path


def tpu_vm(home: Path, *words: str, command: list[str] | None = None) -> subprocess.CompletedProcess:
    env = os.environ | {"PATH": f"{home}/bin:{os.environ['PATH']}", "HOME": str(home), "TMPDIR": str(home)}
    argv = [str(SCRIPT), *words, *(["--", *command] if command else [])]
    return subprocess.run(argv, cwd=home, env=env, capture_output=True, text=True, timeout=300)


def printed(home: Path, *words: str, command: list[str] | None = None) -> list[list[str]]:
    """The commands that --dry-run prints, as words."""
    result = tpu_vm(home, *words, "--dry-run", command=command)
    assert (result.returncode, result.stderr, (home / "calls").read_text()) == (0, "", "")
    return [shlex.split(line) for line in result.stdout.splitlines() if not line.startswith("#")]


def calls(home: Path) -> list[str]:
    """What gcloud was asked for, by its first words."""
    lines = (home / "calls").read_text().splitlines()
    return [" ".join(line.split()[2:4]) for line in lines if line.startswith("compute tpus")]


def test_a_dry_run_of_create_and_delete(home):
    ask = "gcloud compute tpus queued-resources create toy --node-id=toy --zone=us-east5-b --accelerator-type"
    assert printed(home, "create", "toy", "--zone=us-east5-b", "--type=v6e-8") == [
        f"{ask}=v6e-8 --runtime-version=v2-alpha-tpuv6e --spot".split()
    ]
    assert printed(home, "create", "toy", "--zone=us-east5-b", "--type=v5litepod-16", "--on-demand") == [
        f"{ask}=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite".split()
    ]
    give_back = "gcloud compute tpus queued-resources delete toy --zone=us-east5-b --project=p --force --quiet"
    assert printed(home, "delete", "toy", "--zone=us-east5-b", "--project=p") == [give_back.split()]


def test_a_dry_run_of_setup_run_and_logs(home):
    archive, copy, clean, install = printed(home, "setup", "toy", "--zone=z")
    assert archive[:4] == ["git", "-C", str(ROOT), "archive"]
    assert copy[:5] == ["gcloud", "compute", "tpus", "tpu-vm", "scp"]
    assert copy[5:] == [clean[-1], "toy:pasta_jax.tar.gz", "--zone=z", "--worker=all"]
    assert install[:8] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "toy", "--zone=z", "--worker=all"]
    assert install[8].endswith("bash pasta_jax/launch/setup.sh --tpu --gcs --assets")
    (run,) = printed(home, "run", "toy", "--zone=z", command=TRAIN)
    assert run[7] == "--worker=all"
    (logs,) = printed(home, "logs", "toy", "--zone=z")
    assert logs[5:] == ["toy", "--zone=z", "--worker=0", "--command=tail -n 100 -F run.log"]


def test_a_dry_run_of_watch_prints_each_step_and_asks_for_nothing(home):
    words = printed(home, "watch", "toy", "--zone=z", "--type=v4-8", command=TRAIN)
    steps = [" ".join(line[3:5]) for line in words if line[0] == "gcloud"]
    request, tpu = "queued-resources", "tpu-vm"
    assert steps == [
        f"{request} describe", f"{request} create", f"{tpu} describe", f"{tpu} ssh",
        f"{tpu} scp", f"{tpu} ssh", f"{tpu} ssh", f"{request} delete", f"{request} create",
    ]  # fmt: skip


def test_a_dry_run_of_xpk(home):
    (words,) = printed(home, "xpk", "toy", "--cluster=c", "--type=v5litepod-16", command=TRAIN)
    assert words[:3] == ["xpk", "workload", "create"]
    assert {"--workload=toy", "--cluster=c", "--tpu-type=v5litepod-16", "--spot", "--max-restarts=100"} <= set(words)
    assert words[-1].startswith("--command=bash launch/setup.sh --tpu")
    assert words[-1].endswith(" && python -m launch.sft --workdir=gs://b/toy")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rent", "toy"], "unknown command 'rent'"),
        (["create", "Toy"], "'Toy' is not a name"),
        (["create", "toy", "--type=v6e-8"], "--zone is missing"),
        (["create", "toy", "--zone=z"], "--type is missing"),
        (["create", "toy", "--zone=z", "--type=tpu7x-8"], "tpu7x needs xpk"),
        (["run", "toy", "--zone=z"], "the command is missing"),
        (["watch", "toy", "--zone=z", "--type=v6e-8", "--interval=x"], "whole numbers"),
        (["setup", "toy", "--zones=z"], "unknown flag --zones=z"),
        (["xpk", "toy", "--type=v6e-8"], "--cluster is missing"),
    ],
)
def test_a_mistake_is_one_line(home, words, message):
    result = tpu_vm(home, *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert (home / "calls").read_text() == ""


@pytest.mark.slow
def test_watch_asks_installs_starts_recreates_what_was_taken_away_and_ends(home):
    """The command writes a checkpoint, is lost with its TPU, and succeeds when it is started on the next one."""
    resume = 'if [ -e ~/bucket ]; then echo "resumed $1"; else touch ~/bucket ~/lost; sleep 60; fi'
    states = ["absent", "WAITING_FOR_RESOURCES", "ACTIVE", "ACTIVE", "SUSPENDED", *["ACTIVE"] * 30]
    (home / "requests").write_text("\n".join(states) + "\n")
    (home / "tpus").write_text("READY\n" * 40)
    fake = (home / "bin/gcloud").read_text()
    # A TPU that is deleted takes its files along: all but the bucket's.
    loses = '  *delete*) kill -- -"$(cat "$HOME/run.pid")"; rm -f "$HOME"/run.* ;;\n'
    (home / "bin/gcloud").write_text(fake.replace("esac", loses + "esac"))
    flags = ["watch", "toy", "--zone=z", "--type=v6e-8", "--interval=1"]
    result = tpu_vm(home, *flags, command=["bash", "-c", resume, "-", "it's here"])
    assert result.returncode == 0, result.stderr
    assert (home / "lost").exists()
    assert (home / "run.log").read_text() == "resumed it's here\n"
    request = "queued-resources"
    assert [call for call in calls(home) if call.startswith(request) and "describe" not in call] == [
        f"{request} create", f"{request} delete", f"{request} create",
    ]  # fmt: skip
    assert "toy is SUSPENDED: asking for another" in result.stderr
    assert result.stderr.splitlines()[-1].endswith("launch/tpu_vm.sh delete toy --zone=z")


@pytest.mark.slow
def test_watch_restarts_a_failing_command_a_few_times_and_shows_its_last_lines(home):
    (home / "requests").write_text("ACTIVE\n" * 20)
    (home / "tpus").write_text("READY\n" * 20)
    fail = ["bash", "-c", "echo no weights; exit 7"]
    flags = ["watch", "toy", "--zone=z", "--type=v6e-8", "--interval=1", "--restarts=1"]
    result = tpu_vm(home, *flags, command=fail)
    assert result.returncode == 2
    assert "no weights" in result.stderr
    assert "the command failed 2 times, the last time with 7" in result.stderr


def test_a_second_run_is_refused_while_one_is_in_progress(home):
    assert tpu_vm(home, "run", "toy", "--zone=z", command=["sleep", "60"]).returncode == 0
    second = tpu_vm(home, "run", "toy", "--zone=z", command=["true"])
    assert (second.returncode, second.stderr) == (1, "a run is in progress\n")
    os.killpg(int((home / "run.pid").read_text()), 9)
