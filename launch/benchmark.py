"""Run a benchmark, as `python -m launch.benchmark decode`; prints one JSON object. See configs/benchmark.py."""

import sys

from absl import flags

from launch import cli
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.errors import PastaError
from pasta_jax.progress import show
from pasta_jax.runs.settings import changed

NAMES = (
    "decode", "prefill", "rounding", "interpreter", "train", "sampling", "serve", "load", "forks", "fill", "drafts",
    "ways", "profile",
)  # fmt: skip

WITH_PEERS = ("decode", "prefill", "rounding", "train", "serve", "load", "fill", "ways")
WITH_PROGRAMS = ("interpreter", "profile")
UNREAD = {  # settings of all, and those that don't read them
    "mesh": ("rounding", "serve", "load", "forks", "drafts", "ways"),
    "random_weights": ("rounding", "train", "serve", "load", "forks", "drafts", "ways"),
}
PEERS = flags.DEFINE_bool(
    "peers",
    False,
    f"{', '.join(WITH_PEERS)}: also measure transformers and llama.cpp on the same weights, as `decode --peers`; needs "
    "setup.sh --dev",
)
PROGRAMS = flags.DEFINE_string(
    "programs",
    None,
    f"{', '.join(WITH_PROGRAMS)}: other programs, JSON lines with a field `program`, as --programs=mine.jsonl",
)


def main(settings: BenchmarkSettings, name: str) -> None:
    """Run the benchmark `name`."""
    if name not in NAMES:
        raise PastaError(f"{name!r}: unknown benchmark; choose one of {', '.join(NAMES)}")
    for flag, value, reads in (("peers", PEERS.value, WITH_PEERS), ("programs", PROGRAMS.value, WITH_PROGRAMS)):
        if value and name not in reads:
            raise PastaError(f"--{flag}: {name} doesn't read it; leave it out, or choose {', '.join(reads)}")
    for field, others in UNREAD.items():
        if name in others and getattr(settings, field) != getattr(BenchmarkSettings(), field):
            raise PastaError(f"config.{field}: {name} doesn't read it; leave it out")
    if PEERS.value and settings.random_weights:
        raise PastaError("--peers: the peers read packaged weights; leave config.random_weights out")
    if PROGRAMS.value is not None:
        settings = changed(settings, interpreter={"programs": PROGRAMS.value})
    cli.announce_device()

    # These import JAX: after the flags, so that --help starts quickly.
    from pasta_jax.benchmark import fill, forks, profile, rounding, serving, ways
    from pasta_jax.benchmark import run as benchmark

    runs = {
        "decode": benchmark.decode,
        "prefill": benchmark.prefill,
        "rounding": rounding.measure,
        "interpreter": benchmark.interpreter,
        "train": benchmark.train,
        "sampling": benchmark.sampling,
        "serve": serving.measure,
        "load": serving.measure_load,
        "forks": forks.measure,
        "fill": fill.measure,
        "drafts": benchmark.draft,
        "ways": ways.measure,
        "profile": profile.profile,
    }
    report = runs[name](settings, PEERS.value) if name in WITH_PEERS else runs[name](settings)
    if name == "profile":
        show(profile.table(report))
    print(benchmark.as_json(report))


if __name__ == "__main__":
    # As launch.sft does.
    cli.run(main, "configs/benchmark.py", argument="which benchmark", large_pages="train" in sys.argv[1:])
