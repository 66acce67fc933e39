#!/usr/bin/env bash
# Answer a question in parallel threads on this machine, after installing what that needs: SmolLM2-135M-Instruct with
# the adapters in checkpoints/. Compares it with the sequential answer of the same model's baseline, and writes a page
# about the answer to runs/demo.html.
#   launch/demo.sh [--qwen] ["a question"] [--flag=value ...]
# --qwen takes Qwen2.5-Coder-1.5B-Instruct in 4 bits instead (1.1 GB), and compares it with that model as it was. The
# first argument that is not a flag is the question (- reads it from stdin); the rest is passed to launch.decode.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
question='' flags=() assets=--assets variant=pasta
default='What are the benefits of regular exercise?'
for argument; do
  if [[ $argument == --qwen ]]; then
    assets=--qwen variant=qwen default='List five famous landmarks in Europe and describe each in a sentence.'
  elif [[ -z $question && $argument != -?* ]]; then
    question=$argument
  else
    flags+=("$argument")
  fi
done

if [[ " ${flags[*]-} " == *" --help "* ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
  exit
fi
"$root/launch/setup.sh" "$assets"
mkdir -p "$root/runs"

# -P: a folder named launch or configs in the current directory must not shadow ours.
exec "$root/.venv/bin/python" -P -m launch.decode --config="$root/configs/decode.py:$variant" \
  --compare --config.compare_passes=1 --html="$root/runs/demo.html" \
  --prompt="${question:-$default}" ${flags[@]+"${flags[@]}"}
