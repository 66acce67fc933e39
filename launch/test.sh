#!/usr/bin/env bash
# Run the linters where they are installed (setup.sh --dev), then pytest.
#   launch/test.sh quick   without real weights, the TPU compiler, and tests marked `slow` or `extended`
#   launch/test.sh         without real weights, the TPU compiler, and tests marked `extended`
#   launch/test.sh --all   every test
#   launch/test.sh ARGS    every test that pytest selects by these arguments; paths are relative to the repository root
# The exit code is pytest's, or 1 if a linter alone fails.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
if [[ ${1:-} == --help ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
  exit
fi
"$root/launch/setup.sh"
cd "$root"
python=.venv/bin/python

heavy="real or tpu or extended" selection=()
case ${1:-} in
  quick)
    selection=(-m "not ($heavy or slow)")
    export PASTA_JAX_QUICK=1 # fewer examples: tests/helpers/examples.py
    shift
    ;;
  --all) shift ;;
  "") selection=(-m "not ($heavy)") ;;
esac

lint=0
if [[ -x .venv/bin/ruff ]]; then
  "$python" -m ruff check --quiet --output-format=concise || lint=1
  "$python" -m ruff format --check --quiet --output-format=concise || lint=1
  .venv/bin/lint-imports --no-cache >/dev/null || lint=1
  .venv/bin/shellcheck launch/*.sh .ci/run || lint=1
fi

# Two processes: compiling takes much of the time and uses one core.
if (($# == 0)); then set -- -n 2 --dist worksteal; fi
code=0
cache=${PASTA_JAX_CACHE:-~/.cache/pasta_jax} # where HOME is unset too
find "$cache/programs_of_tests" -type f -atime +14 -delete 2>/dev/null || true
# Eight simulated devices on few cores deadlock in an all-reduce unless the thread pool has more than eight threads.
JAX_PLATFORMS=cpu NPROC=32 "$python" -m pytest ${selection[@]+"${selection[@]}"} "$@" || code=$?
if ((lint)); then echo "a linter failed: run ruff check, ruff format, lint-imports and shellcheck of .venv/bin" >&2; fi
exit $((code ? code : lint))
