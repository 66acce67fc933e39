"""launch/tpu_vm.sh: what it prints with --dry-run, and what it does with a gcloud that plays a TPU on this machine."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

TRAIN = ["--", "python", "-m", "launch.sft", "--workdir=gs://b/toy"]
# A gcloud whose answers are lines of a file, one for each time that it is asked for a state; ssh runs on this machine.
# A TPU that is deleted takes its files along.
GCLOUD = r"""#!/usr/bin/env bash
all=$*
printf '%s\n' "$all" >>"$HOME/calls"
answer() { head -n 1 "$HOME/$1" && sed -i 1d "$HOME/$1"; }
case $all in
  *queued-resources\ describe*) line=$(answer requests); [[ $line != absent ]] && echo "$line" ;;
  *queued-resources\ delete*) kill -- -"$(cat "$HOME/run.pid")"; rm -f "$HOME"/run.* ;;
  *tpu-vm\ describe*) echo READY ;;
  *tpu-vm\ scp*) cp "$5" "$HOME/pasta_jax.tar.gz" ;;
  *uv\ python*)
    line=${all##*--command=} && cd "$HOME" &&
      bash -c "${line%%python3*}mkdir -p pasta_jax/.venv/bin" && touch pasta_jax/.venv/bin/activate ;;
  *tpu-vm\ ssh*) cd "$HOME" && bash -c "${all##*--command=}" ;;
esac
"""
# A commit with one file.
GIT = """#!/usr/bin/env bash
mkdir -p "$HOME/commit/launch" && touch "$HOME/commit/launch/sft.py" && tar -C "$HOME/commit" -czf "${5#--output=}" .
"""


@pytest.fixture
def home(tmp_path) -> Path:
    """The home folder of the one host, where pasta_jax is installed, and of gcloud."""
    for name in ("bin", "pasta_jax/.venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "pasta_jax/.venv/bin/activate").touch()
    for name, script in (("gcloud", GCLOUD), ("git", GIT)):
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "calls").touch()
    return tmp_path


def tpu_vm(home: Path, *words: str) -> subprocess.CompletedProcess:
    env = os.environ | {"PATH": f"{home}/bin:{os.environ['PATH']}", "HOME": str(home), "TMPDIR": str(home)}
    script = str(ROOT / "launch/tpu_vm.sh")
    return subprocess.run([script, *words], cwd=home, env=env, capture_output=True, text=True, timeout=300)


ON_TPU = "gcloud compute tpus tpu-vm"
CREATE = "gcloud compute tpus queued-resources create toy --node-id=toy --zone=z --accelerator-type"


@pytest.mark.parametrize(
    ("words", "expected"),  # the beginnings of the commands
    [
        (["create", "--type=v6e-8"], [f"{CREATE}=v6e-8 --runtime-version=v2-alpha-tpuv6e --spot"]),
        (["create", "--type=v5p-8", "--on-demand"], [f"{CREATE}=v5p-8 --runtime-version=v2-alpha-tpuv5"]),
        (["delete", "--project=p"], ["gcloud compute tpus queued-resources delete toy --zone=z --project=p"]),
        (["logs"], [f"{ON_TPU} ssh toy --zone=z --worker=0 '--command=tail -n 100 -F run.log'"]),
        (
            ["setup"],
            [f"git -C {ROOT} archive", f"{ON_TPU} scp", "rm", f"{ON_TPU} ssh"],
        ),
        (["run", *TRAIN], [f"{ON_TPU} ssh toy --zone=z --worker=all"]),
        (["xpk", "--cluster=c", "--type=v5p-8", *TRAIN], ["xpk workload create --workload=toy --cluster=c"]),
        (
            ["watch", "--type=v4-8", *TRAIN],
            [f"gcloud compute tpus queued-resources {verb} toy" for verb in ("describe", "create")]
            + [f"{ON_TPU} {verb} toy" for verb in ("describe", "ssh")]
            + ["git", f"{ON_TPU} scp", "rm", *[f"{ON_TPU} ssh toy"] * 2]
            + [f"gcloud compute tpus queued-resources {verb} toy" for verb in ("delete", "create")],
        ),
    ],
)
def test_a_dry_run_prints_each_command_and_runs_none(home, words, expected):
    result = tpu_vm(home, words[0], "toy", "--zone=z", "--dry-run", *words[1:])
    assert (result.returncode, result.stderr, (home / "calls").read_text()) == (0, "", "")
    printed = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    assert [line.startswith(begin) for line, begin in zip(printed, expected, strict=True)] == [True] * len(printed)
    if words[0] == "xpk":
        assert shlex.split(printed[0])[-1].endswith("-m launch.sft --workdir=gs://b/toy")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rent", "toy"], "unknown command 'rent'"),
        (["create", "Toy"], "'Toy' is not a name"),
        (["create", "toy", "--type=v6e-8"], "--zone is missing"),
        (["create", "toy", "--zone=z"], "--type is missing"),
        (["create", "toy", "--zone=z", "--type=tpu7x-8"], "tpu7x needs xpk"),
        (["watch", "toy", "--zone=z", "--type=tpu7x-8", "--interval=1", *TRAIN], "tpu7x needs xpk"),
        (["run", "toy", "--zone=z"], "the command is missing"),
        (["watch", "toy", "--zone=z", "--type=v6e-8", "--interval=x"], "whole numbers"),
        (["setup", "toy", "--zones=z"], "unknown flag --zones=z"),
        (["xpk", "toy", "--type=v6e-8"], "--cluster is missing"),
    ],
)
def test_a_mistake_is_one_line(home, words, message):
    result = tpu_vm(home, *words)
    assert (result.returncode, result.stdout, (home / "calls").read_text()) == (2, "", "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.extended
def test_watch_installs_starts_restarts_and_asks_for_another_tpu_until_the_command_succeeds(home):
    """The command fails once, is then lost with its TPU, and succeeds on the next one."""
    tries = "echo try $1 >>~/tries; case $(wc -l <~/tries) in 1) exit 7;; 2) sleep 60;; *) echo done $1;; esac"
    states = ["absent", "WAITING_FOR_RESOURCES", *["ACTIVE"] * 4, "SUSPENDED", *["ACTIVE"] * 20]
    (home / "requests").write_text("\n".join(states) + "\n")
    flags = ["watch", "toy", "--zone=z", "--type=v6e-8", "--interval=1"]
    result = tpu_vm(home, *flags, "--restarts=1", "--", "bash", "-c", tries, "-", "it's here")
    assert result.returncode == 0, result.stderr
    assert (home / "run.log").read_text() == "done it's here\n"
    calls = [line.split()[3] for line in (home / "calls").read_text().splitlines() if "queued-resources" in line]
    assert [call for call in calls if call != "describe"] == ["create", "delete", "create"]
    assert "ended with 7: restart 1 of 1" in result.stderr
    assert "toy is SUSPENDED: asking for another" in result.stderr


@pytest.mark.extended
def test_watch_ends_with_the_last_lines_of_a_command_that_keeps_failing(home):
    (home / "requests").write_text("ACTIVE\n" * 9)
    flags = ["watch", "toy", "--zone=z", "--type=v6e-8", "--interval=1", "--restarts=0"]
    result = tpu_vm(home, *flags, "--", "bash", "-c", "echo no weights; exit 7")
    assert result.returncode == 2
    assert "no weights" in result.stderr
    assert "the command failed 1 times, the last time with 7" in result.stderr


def test_a_second_run_is_refused_while_one_is_in_progress(home):
    assert tpu_vm(home, "run", "toy", "--zone=z", "--", "sleep", "60").returncode == 0
    second = tpu_vm(home, "run", "toy", "--zone=z", "--", "true")
    assert (second.returncode, second.stderr) == (1, "a run is in progress\n")
    os.killpg(int((home / "run.pid").read_text()), 9)


def test_setup_keeps_what_runs_have_written_and_disturbs_none(home):
    for file in ("runs/toy/metrics.jsonl", "launch/old.py"):
        (home / "pasta_jax" / file).parent.mkdir(parents=True)
        (home / "pasta_jax" / file).touch()
    assert tpu_vm(home, "setup", "toy", "--zone=z").returncode == 0
    assert (home / "pasta_jax/runs/toy/metrics.jsonl").is_file()
    assert (home / "pasta_jax/launch/sft.py").is_file()
    assert not (home / "pasta_jax/launch/old.py").exists()
    assert tpu_vm(home, "run", "toy", "--zone=z", "--", "sleep", "60").returncode == 0
    again = tpu_vm(home, "setup", "toy", "--zone=z")
    assert (again.returncode, again.stderr) == (1, "a run is in progress\n")
    os.killpg(int((home / "run.pid").read_text()), 9)


def test_watch_runs_another_command_than_the_one_that_has_ended(home):
    (home / "requests").write_text("ACTIVE\n" * 999)
    (home / "run.code").write_text("0\n")
    flags = ["watch", "toy", "--zone=z", "--type=v6e-8", "--interval=0", "--restarts=0"]
    for _ in range(2):
        assert tpu_vm(home, *flags, "--", "bash", "-c", 'echo "$1" >>~/done', "-", "it's done").returncode == 0
    assert (home / "done").read_text() == "it's done\n"
