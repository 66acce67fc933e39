#!/usr/bin/env bash
# Rent a TPU on Google Cloud, run a command on all of its hosts, and resume it whenever the TPU is taken away.
#
#   launch/tpu_vm.sh create NAME --zone=ZONE --type=v6e-8     ask for a TPU of this type; it waits in a queue
#   launch/tpu_vm.sh setup  NAME --zone=ZONE                  copy the last commit to all hosts, install it; runs/ stays
#   launch/tpu_vm.sh run    NAME --zone=ZONE -- COMMAND       start a command on all hosts, in the background
#   launch/tpu_vm.sh logs   NAME --zone=ZONE                  follow what it prints on the first host
#   launch/tpu_vm.sh watch  NAME --zone=ZONE --type=v6e-8 -- COMMAND
#                                                             all of this until the command succeeds
#   launch/tpu_vm.sh delete NAME --zone=ZONE                  give the TPU back
#   launch/tpu_vm.sh xpk    NAME --cluster=CLUSTER --type=v6e-8 -- COMMAND
#                                                             run the command on a GKE cluster of XPK's instead
#
# --dry-run       print every command instead of running it
# --on-demand     a TPU that is not taken away; without it, a spot TPU
# --project=ID, --runtime=VERSION (follows from the type), --interval=SECONDS between two looks of watch (60),
# --restarts=N    how often watch restarts a command that fails on a TPU that is still there (3)
#
# Needs gcloud, or for xpk xpk, signed in. A command that resumes keeps its files at gs://, as
# `python -m launch.sft --config=configs/sft.py:toy --workdir=gs://BUCKET/toy`. docs/TPU.md explains it.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
action='' name='' zone='' type='' project='' runtime='' cluster='' spot=1 dry=0 interval=60 restarts=3 command=()

say() { printf 'tpu_vm: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 2
}

# A word as a shell reads it: in quotes unless it is plain.
quoted() {
  if [[ $1 =~ ^[A-Za-z0-9_./:=@,%+-]+$ ]]; then printf '%s' "$1"; else printf "'%s'" "${1//\'/\'\\\'\'}"; fi
}
line_of() {
  local word line=''
  for word; do line+=" $(quoted "$word")"; done
  printf '%s\n' "${line# }"
}

# Run a command, or with --dry-run print it. What asks for a state is not run either.
do_it() { if ((dry)); then line_of "$@"; else "$@"; fi; }

read_flags() {
  action=${1:-} name=${2:-}
  case $action in
    create | setup | run | logs | watch | delete | xpk) ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}" && exit ;;
    *) die "unknown command '$action'; choose create, setup, run, logs, watch, delete or xpk (see --help)" ;;
  esac
  if [[ ! $name =~ ^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$ ]]; then
    die "'$name' is not a name: lower-case letters, digits and hyphens, as in: launch/tpu_vm.sh $action toy-run"
  fi
  shift 2
  while (($#)); do
    case $1 in
      --zone=?*) zone=${1#*=} ;;
      --type=?*) type=${1#*=} ;;
      --project=?*) project=${1#*=} ;;
      --runtime=?*) runtime=${1#*=} ;;
      --cluster=?*) cluster=${1#*=} ;;
      --interval=?*) interval=${1#*=} ;;
      --restarts=?*) restarts=${1#*=} ;;
      --on-demand) spot=0 ;;
      --dry-run) dry=1 ;;
      --)
        shift
        command=("$@")
        break
        ;;
      *) die "unknown flag $1 (see --help)" ;;
    esac
    shift
  done
  if [[ ! $interval =~ ^[0-9]+$ || ! $restarts =~ ^[0-9]+$ ]]; then die "--interval and --restarts are whole numbers"; fi
  if [[ -z $zone && $action != xpk ]]; then die "--zone is missing, as in --zone=us-east5-b"; fi
  if [[ -z $type && $action =~ ^(create|watch|xpk)$ ]]; then die "--type is missing, as in --type=v6e-8"; fi
  if [[ -z $cluster && $action == xpk ]]; then die "--cluster is missing: the name that xpk cluster create was given"; fi
  if ((${#command[@]} == 0)) && [[ $action =~ ^(run|watch|xpk)$ ]]; then
    die "the command is missing: add -- python -m launch.sft --config=… --workdir=gs://…"
  fi
  if [[ -z $runtime && $action =~ ^(create|watch)$ ]]; then runtime=$(runtime_of); fi
  where=(--zone="$zone")
  if [[ $project ]]; then where+=(--project="$project"); fi
}

# The software that Google recommends for JAX on this type.
runtime_of() {
  case $type in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v4-* | v3-* | v2-*) echo tpu-ubuntu2204-base ;;
    *) die "--type=$type: not a type of the Cloud TPU API (v6e-8, v5p-8, v5litepod-8, v4-8, …); tpu7x needs xpk" ;;
  esac
}

create() {
  local options=()
  if ((spot)); then options+=(--spot); fi
  do_it gcloud compute tpus queued-resources create "$name" --node-id="$name" "${where[@]}" \
    --accelerator-type="$type" --runtime-version="$runtime" ${options[@]+"${options[@]}"}
}

delete() { do_it gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force --quiet; }

on_hosts() { do_it gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker="$1" --command="$2"; }

# run.command has the command, run.pid its process, run.log what it printed, run.code its exit code once it has ended.
idle="if ! [ -e ~/run.code ] && kill -0 \$(cat ~/run.pid 2>/dev/null) 2>/dev/null; then echo 'a run is in progress' >&2; exit 1; fi; "

# The images have Python 3.10, so uv fetches 3.12. An interrupted setup is completed by the next one.
install="${idle}mkdir -p pasta_jax && find pasta_jax -mindepth 1 -maxdepth 1 ! -name runs -exec rm -rf {} + && "
install+='tar -xzf pasta_jax.tar.gz -C pasta_jax && '
install+='python3 -m pip install --user --quiet uv && ~/.local/bin/uv python install --quiet 3.12 && '
# shellcheck disable=SC2016  # the hosts expand it
install+='PYTHON=$(~/.local/bin/uv python find 3.12) bash pasta_jax/launch/setup.sh --tpu --gcs --assets'

setup() {
  local archive=${TMPDIR:-/tmp}/pasta_jax.$$.tar.gz
  do_it git -C "$root" archive --format=tar.gz --output="$archive" HEAD &&
    do_it gcloud compute tpus tpu-vm scp "$archive" "$name:pasta_jax.tar.gz" "${where[@]}" --worker=all &&
    do_it rm -f "$archive" && on_hosts all "$install"
}

run() {
  local inner
  inner="source .venv/bin/activate && $(line_of "${command[@]}"); echo \$? >~/run.code"
  on_hosts all "${idle}cd pasta_jax && rm -f ~/run.code && printf %s $(quoted "$(line_of "${command[@]}")") >~/run.command && \
{ nohup setsid bash -c $(quoted "$inner") >~/run.log 2>&1 </dev/null & echo \$! >~/run.pid; }"
}

# How the command is on the first host; fresh: what ran there last, if anything, was another one.
look() {
  on_hosts 0 "if [ \"\$(cat ~/run.command 2>/dev/null)\" != $(quoted "$(line_of "${command[@]}")") ]; then echo fresh; \
elif [ -e ~/run.code ]; then cat ~/run.code; elif kill -0 \$(cat ~/run.pid) 2>/dev/null; then echo running; else echo died; fi"
}

logs() { on_hosts 0 'tail -n 100 -F run.log'; }

state_of_request() {
  do_it gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format='value(state.state)'
}
state_of_tpu() { do_it gcloud compute tpus tpu-vm describe "$name" "${where[@]}" --format='value(state)'; }

# Without a state to go by, --dry-run prints each step once.
watch_dry() {
  echo "# the state of the request"
  state_of_request
  echo "# no request: ask for a TPU"
  create
  echo "# ACTIVE: the state of the TPU"
  state_of_tpu
  echo "# READY: the state of the command"
  look
  echo "# fresh: install and start"
  setup
  run
  echo "# SUSPENDED, FAILED, PREEMPTED or TERMINATED: delete it and ask again"
  delete
  create
}

recreate() {
  say "$name is $1: asking for another"
  failures=0
  delete || true
  create || true
}

# A look that fails, as ssh does while a TPU is taken away, is repeated.
watch() {
  local state failures=0 latest=''
  if ((dry)); then watch_dry && return; fi
  while true; do
    if ! state=$(state_of_request 2>/dev/null); then state=absent; fi
    if [[ $state == ACTIVE ]]; then state=$(state_of_tpu 2>/dev/null) || state=unknown; fi
    if [[ $state == READY ]]; then state=$(look 2>/dev/null | tail -n 1) || state=unreachable; fi
    if [[ $state != "$latest" ]]; then say "$name: $state"; fi
    latest=$state
    case $state in
      absent) create || true ;;
      SUSPENDED | FAILED | PREEMPTED | TERMINATED) recreate "$state" ;;
      fresh) { setup && run; } || say "starting failed: trying again" ;;
      0)
        say "the command has succeeded; give the TPU back with: launch/tpu_vm.sh delete $name ${where[*]}"
        return
        ;;
      died | [1-9]*)
        if ((failures == restarts)); then
          logs_end
          die "the command failed $((failures + 1)) times, the last time with $state"
        fi
        failures=$((failures + 1))
        say "the command ended with $state: restart $failures of $restarts"
        run || true
        ;;
    esac
    sleep "$interval"
  done
}

logs_end() { on_hosts 0 'tail -n 20 run.log' >&2 || true; }

# GKE restarts the workload; the container has no virtual environment, so the command begins with setup.sh.
xpk_workload() {
  local options=()
  if [[ $zone ]]; then options+=(--zone="$zone"); fi
  if [[ $project ]]; then options+=(--project="$project"); fi
  if ((spot)); then options+=(--spot); fi
  do_it xpk workload create --workload="$name" --cluster="$cluster" --tpu-type="$type" --num-slices=1 \
    ${options[@]+"${options[@]}"} --base-docker-image=python:3.12 --script-dir="$root" \
    --max-restarts=100 --restart-on-user-code-failure \
    --command="bash launch/setup.sh --tpu --gcs --assets && source .venv/bin/activate && $(line_of "${command[@]}")"
}

read_flags "$@"
if [[ $action == xpk ]]; then xpk_workload; else "$action"; fi
