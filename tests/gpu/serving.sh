#!/usr/bin/env bash
# Measures how voxserve serves under load, on the machine where it runs. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/steps.sh"
# shellcheck source=tests/gpu/carried_build.sh
source "$ROOT/tests/gpu/carried_build.sh"
# shellcheck source=tests/gpu/serving_numbers.sh
source "$ROOT/tests/gpu/serving_numbers.sh"

usage() {
  cat <<'HELP'
tests/gpu/serving.sh [BUILD] --repository DIR --model NAME --scans PATH... [OPTIONS] [-- SERVER_FLAGS...]

Measures a server over gRPC on this machine's loopback, and a server that only echoes messages of the same sizes for
comparison. One run takes less than 150 seconds (and --versions_seconds) and prints one report in Markdown:

  closed loop  1, 2, 4, 8 and 16 clients, echo and voxserve
  overload     Poisson arrivals at twice the measured rate, deadlines of 50 ms; memory; then one client again. One load
               client sends them all: above about 2,000 scans of 2 MB a second it is late itself
  mixed        8 clients, scans of several sizes
  streams      vehicles at 10 Hz, the newest frame first, until the p99 frame age passes 100 ms
  reload       8 clients while the model's files change and are loaded anew every second
  versions     8 clients while two versions, whose labels all differ, replace each other every second; every answer is
               compared with that of the version that it names

It builds nothing: BUILD (default build/release) may come from another machine. It needs bash, coreutils, sed, grep and
python3.

  --repository DIR    the model repository; the server uses a copy of it
  --model NAME        one of its models
  --scans PATH...     scans of one size, or folders of them
  --mixed PATH...     scans of several sizes; without them that part is left out
  --drive PATH...     a vehicle's scans, one after the other (default: --scans)
  --fields SPEC       layout of the scans' points (see voxserve-client infer); --mixed_fields SPEC and
                      --drive_fields SPEC do the same for the other scans
  --devices LIST      the server's devices (default: every GPU)
  --seconds N         length of a measurement (default: 3; overload takes twice, reload five times that)
  --versions_seconds N  length of versions (default: 10)
  --deadline_ms N     deadline of the overload's requests (default: 50)
  --clients "N..."    numbers of clients in the closed loop (default: "1 2 4 8 16")
  --vehicles "N..."   numbers of vehicles in the streams (default: "4 8 16 24 32")
  --out FILE          file for the report (default: BUILD/gpu/serving.md); the logs are in the same folder

Exit codes: 0 everything was measured, 1 something failed or timed out.
HELP
}

build=$BUILD/release repository='' model='' devices='' seconds=3 versions_seconds=10 deadline_ms=50 out=''
clients='1 2 4 8 16' vehicles='4 8 16 24 32'
fields='' mixed_fields='' drive_fields=''
scans=() mixed=() drive=() server_flags=()
while (($# > 0)); do
  case $1 in
    --scans | --mixed | --drive)
      declare -n paths=${1#--}
      while (($# > 1)) && [[ $2 != -* ]]; do
        [[ -e $2 ]] || die "'$2' does not exist"
        paths+=("$(realpath "$2")")
        shift
      done
      ((${#paths[@]} > 0)) || die "$1 needs a path; see --help"
      ;;
    --repository | --model | --devices | --seconds | --versions_seconds | --deadline_ms | --clients | --vehicles | \
      --out | --fields | --mixed_fields | --drive_fields)
      (($# > 1)) || die "$1 needs a value; see --help"
      declare -n value=${1#--}
      # shellcheck disable=SC2034  # $name is one of the variables above
      value=$2
      shift
      ;;
    -h | --help) usage && exit ;;
    --)
      shift
      server_flags=("$@")
      break
      ;;
    -*) die "unknown option $1; see --help" ;;
    *) build=$1 ;;
  esac
  shift
done
[[ -n $model ]] || die "--model is needed; see --help"
((${#scans[@]} > 0)) || die "--scans is needed; see --help"
[[ -n $repository && -d $repository/$model ]] || die "--repository has no folder '$model': '$repository'"
for number in "$seconds" "$versions_seconds" "$deadline_ms" $clients $vehicles; do
  [[ $number =~ ^[1-9][0-9]{0,4}$ ]] || die "'$number' is no whole number from 1 to 99999"
done
[[ -d $build ]] || die "the build '$build' does not exist"
build=$(realpath "$build")
server=$build/server/voxserve client=$build/client/cpp/voxserve-client echo=$build/tests/bench/echo_server_bench
reload_check=$build/tests/gpu/reload_check
for program in "$server" "$client" "$echo" "$reload_check"; do
  [[ -x $program ]] || die "'$program' is missing: build voxserve, voxserve-client, echo_server_bench and reload_check"
done
command -v python3 >/dev/null || die "python3 is missing"
((${#drive[@]} > 0)) || { drive=("${scans[@]}") && drive_fields=$fields; }
layout() { if [[ -n $1 ]]; then printf -- '--fields\n%s\n' "$1"; fi; }
mapfile -t scans < <(layout "$fields" && printf '%s\n' "${scans[@]}")
((${#mixed[@]} == 0)) || mapfile -t mixed < <(layout "$mixed_fields" && printf '%s\n' "${mixed[@]}")
mapfile -t drive < <(layout "$drive_fields" && printf '%s\n' "${drive[@]}")

here=$ROOT/tests/gpu
out=$(realpath -m "${out:-$build/gpu/serving.md}")
logs=$(dirname "$out")/serving
mkdir -p "$logs"
work=$(mktemp -d)
use_carried_build "$build"

# The ids of the processes that this script started and has to end.
running=()

stop() {
  local pid=$1 i
  kill "$pid" 2>/dev/null || true
  for ((i = 0; i < 100; ++i)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -9 "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
}

# shellcheck disable=SC2317  # a trap calls it
clean_up() {
  local pid
  rm -f "$work/goes_on"
  for pid in "${running[@]}"; do stop "$pid"; done
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

num_failures=0
fail() { num_failures=$((num_failures + 1)); }
report() { printf '%s\n' "$@" >>"$work/report"; }

time_limit=$((150 + versions_seconds))
# has_time SECONDS WHAT: succeeds if that many seconds are left of the run's time limit. Otherwise the report says that
# WHAT was left out.
has_time() {
  ((SECONDS + $1 <= time_limit)) && return
  fail
  report "**$2: left out, the run's $time_limit s are over**" ""
  return 1
}

# resident_mb prints the server's resident memory, and device_mb the memory in use on all GPUs, both in MB.
resident_mb() { echo $(($(sed -nE 's/^VmRSS:[[:space:]]*([0-9]+) kB/\1/p' "/proc/$server_pid/status") / 1000)); }

device_mb() {
  local used
  used=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | paste -sd+ -) || used=''
  echo $((${used:-0}))
}

# measure NAME ADDRESS SECONDS FLAGS...: runs the load generator once and writes its numbers to $logs/NAME.json.
measure() {
  local name=$1 address=$2 duration=$3 status=0
  shift 3
  quiet "$name (at $SECONDS s)"
  rm -f "$logs/$name.json"
  timeout --kill-after=5 $((${duration%.*} + 12)) "$client" bench --address "$address" --model "$model" \
    --duration "${duration}s" --json "$logs/$name.json" "$@" >"$logs/$name.log" 2>&1 </dev/null || status=$?
  if [[ ! -s $logs/$name.json ]]; then
    fail
    report "**$name FAILED (status $status): $(grep -m 1 . "$logs/$name.log" || true)**" ""
  fi
}

# await SECONDS PID COMMAND...: repeats the command until it succeeds. Fails if process PID ends or the time is over.
await() {
  local end=$((SECONDS + $1)) pid=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ! kill -0 "$pid" 2>/dev/null || ((SECONDS >= end)); then return 1; fi
    sleep 0.1
  done
}

start_echo() {
  "$echo" --port 0 >"$logs/echo_server.log" 2>&1 </dev/null &
  echo_pid=$!
  running+=("$echo_pid")
  await 10 "$echo_pid" grep -q 'listening on' "$logs/echo_server.log" || die "the echo did not start" \
    "$(tail -n 5 "$logs/echo_server.log")"
  echo_address=$(sed -n 's/listening on //p' "$logs/echo_server.log")
}

start_server() {
  local flags=(--model_repository "$work/models" --port 0 --http_port 0)
  [[ -z $devices ]] || flags+=(--devices "$devices")
  cp -rL "$repository" "$work/models"
  chmod -R u+w "$work/models"
  "$server" "${flags[@]}" "${server_flags[@]}" >"$logs/server.log" 2>&1 </dev/null &
  server_pid=$!
  running+=("$server_pid")
  local started=$SECONDS
  if await 10 "$server_pid" grep -q ' serving .*http_port=' "$logs/server.log"; then
    read -r port http_port admin_port devices < <(sed -nE \
      's/.* serving .*grpc_port=([0-9]+).*http_port=([0-9]+).*admin_port=([0-9]+).*devices="?([^" ]*).*/\1 \2 \3 \4/p' \
      "$logs/server.log")
    address=127.0.0.1:$port admin_address=127.0.0.1:$admin_port
  fi
  await 45 "$server_pid" "$client" health --address "${address:-}" ||
    die "the server was not ready" "$(tail -n 5 "$logs/server.log")"
  say "ready after $((SECONDS - started)) s on $devices"
}

run_closed_loop() {
  local n echo_rate echo_p50 echo_p99 rate p50 p90 p99
  step "Closed loop"
  report "## Closed loop" "" \
    "| clients | echo, scans/s | p50 ms | p99 ms | voxserve, scans/s | p50 ms | p90 ms | p99 ms | of echo's rate | p50 \
beyond echo's, ms |" "|---|---|---|---|---|---|---|---|---|---|"
  for n in $clients; do
    has_time $((2 * seconds + 3)) "$n clients" || break
    measure "echo_$n" "$echo_address" "$seconds" --warm_up 500ms --concurrency "$n" "${scans[@]}"
    measure "closed_$n" "$address" "$seconds" --warm_up 500ms --concurrency "$n" "${scans[@]}"
    read -r echo_rate echo_p50 echo_p99 < <(numbers "$logs/echo_$n.json" scans_per_second latency_ms.p50 latency_ms.p99)
    read -r rate p50 p90 p99 < <(numbers "$logs/closed_$n.json" scans_per_second latency_ms.p50 latency_ms.p90 \
      latency_ms.p99)
    report "| $n | $echo_rate | $echo_p50 | $echo_p99 | $rate | $p50 | $p90 | $p99 | $(
      calculate "$rate/$echo_rate") | $(calculate "$p50-$echo_p50") |"
    capacity=$(calculate "max($capacity,$rate)")
    [[ $capacity != - ]] || capacity=0
  done
  stop "$echo_pid"
  scrape "$work/after_closed"
  report "" "Mean batch: $(calculate "$(total "$work/after_closed" voxserve_batch_requests_sum)/$(
    total "$work/after_closed" voxserve_batch_requests_count)") requests." ""
}

# sample_memory FILE: appends a line with resident_mb and device_mb to the file every half second, until $work/goes_on
# is deleted.
sample_memory() {
  while [[ -e $work/goes_on ]]; do
    echo "$(resident_mb) $(device_mb)" >>"$1"
    sleep 0.5
  done
}

# highest FILE COLUMN: prints the largest value of that column.
highest() { cut -d' ' -f"$2" "$1" | sort -n | tail -n 1; }

# outcomes FILE GIVEN_UP: prints table rows that count the requests without an OK answer, and the accepted requests.
# FILE is the load generator's JSON. A request that was refused for lack of time or room in the queue was not accepted,
# except for GIVEN_UP of them, which the server counted as accepted before it gave them up. Every other request without
# an answer was accepted and missed its deadline.
outcomes() {
  python3 - "$1" "$2" <<'PY'
import json, sys

REFUSALS = {"DEADLINE_UNMEETABLE", "QUEUE_FULL"}
try:
    with open(sys.argv[1]) as file:
        document = json.load(file)
except (OSError, ValueError):
    sys.exit()
missed = int(float(sys.argv[2]))
for failure in document["failures"]:
    words = [failure["code"], failure.get("reason"), "" if failure["from_server"] else "(client)"]
    name = " ".join(filter(None, words))
    print(f"| {name}: requests, p50, p99 ms | {failure['count']}, {failure['p50_ms']:.3g}, {failure['p99_ms']:.3g} |")
    missed += 0 if failure.get("reason") in REFUSALS else failure["count"]
ok = document["ok"]
print(f"| answered of those let in | {100 * ok / max(ok + missed, 1):.2f}% |")
PY
}

run_overload() {
  local rate before_mb before_device_mb after_mb after_device_mb sampler given_up
  local alone_p50 alone_p99 again_p50 again_p99 sent ok goodput p50 p99 refused_p99
  step "Overload"
  rate=$(calculate "2*$capacity")
  has_time $((2 * seconds + 4)) "overload" || return 0
  report "## Overload" ""
  if [[ $capacity == 0 ]]; then
    fail
    report "**Left out: no capacity was measured.**" ""
    return
  fi
  before_mb=$(resident_mb) before_device_mb=$(device_mb)
  scrape "$work/before_overload"
  touch "$work/goes_on"
  sample_memory "$work/memory" &
  sampler=$!
  measure overload "$address" $((2 * seconds)) --warm_up 1s --rate "$rate" --arrivals poisson --seed 1 \
    --timeout "${deadline_ms}ms" "${scans[@]}"
  measure after_overload "$address" 1 --warm_up 0s --concurrency 1 "${scans[@]}"
  rm -f "$work/goes_on"
  wait "$sampler"
  after_mb=$(resident_mb) after_device_mb=$(device_mb)
  scrape "$work/after_overload"

  read -r sent ok goodput p50 p99 refused_p99 < <(numbers "$logs/overload.json" requests ok scans_per_second \
    latency_ms.p50 latency_ms.p99 refused_ms.p99)
  report "Poisson arrivals at $rate requests a second, twice the closed loop's best ($capacity), each with a deadline \
of $deadline_ms ms." "" "| | |" "|---|---|" "| requests | $sent |" "| answered in time | $ok |" \
    "| goodput, scans/s | $goodput |" "| goodput against capacity | $(calculate "$goodput/$capacity") |" \
    "| p50, p99 of the answered, ms | $p50, $p99 |" "| refusals' p99 as the clients see it, ms | $refused_p99 |" \
    "| refusals' p99 within the server, at most, ms (of so many) | $(
      percentile 99 voxserve_refusal_duration_seconds "$work/before_overload" "$work/after_overload") |"
  given_up=$(calculate "$(total "$work/after_overload" voxserve_frames_dropped_total 'reason="given_up"')-$(
    total "$work/before_overload" voxserve_frames_dropped_total 'reason="given_up"')")
  outcomes "$logs/overload.json" "$given_up" >>"$work/report"
  read -r alone_p50 alone_p99 < <(numbers "$logs/closed_${clients%% *}.json" latency_ms.p50 latency_ms.p99)
  read -r again_p50 again_p99 < <(numbers "$logs/after_overload.json" latency_ms.p50 latency_ms.p99)
  report "| one client: p50, p99 before, ms | $alone_p50, $alone_p99 |" \
    "| in the second after it, ms | $again_p50, $again_p99 |" \
    "| the server's memory before, highest, after, MB | $before_mb, $(highest "$work/memory" 1), $after_mb |" \
    "| the GPUs' memory in use likewise, MB | $before_device_mb, $(highest "$work/memory" 2), $after_device_mb |" ""
}

run_mixed() {
  local rate p50 p99 points
  ((${#mixed[@]} > 0)) || return 0
  step "Mixed sizes"
  has_time $((seconds + 2)) "mixed sizes" || return 0
  measure mixed "$address" "$seconds" --warm_up 500ms --concurrency "$many" "${mixed[@]}"
  read -r rate points p50 p99 < <(numbers "$logs/mixed.json" scans_per_second points_per_second latency_ms.p50 \
    latency_ms.p99)
  report "## Mixed sizes, $many clients" "" "| scans/s | points/s | p50 ms | p99 ms |" "|---|---|---|---|" \
    "| $rate | $points | $p50 | $p99 |" ""
}

run_streams() {
  local n sent answered superseded p50 p99
  step "Streams"
  report "## Streams: vehicles at 10 Hz, LATEST" "" \
    "| vehicles | frames sent | answered | superseded | p50 frame age ms | p99 frame age ms |" \
    "|---|---|---|---|---|---|"
  for n in $vehicles; do
    has_time $((seconds + 2)) "$n vehicles" || break
    measure "streams_$n" "$address" "$seconds" --warm_up 500ms --streams "$n" --frame_rate 10 --policy latest \
      "${drive[@]}"
    read -r sent answered superseded p50 p99 < <(numbers "$logs/streams_$n.json" streams.frames streams.answered \
      streams.superseded latency_ms.p50 latency_ms.p99)
    report "| $n | $sent | $answered | $superseded | $p50 | $p99 |"
    # Frames of more vehicles would all be late.
    [[ $(calculate "$p99>100") != 1 ]] || break
  done
  report ""
}

# Changes the model's config.textproto and calls LoadModel, once a second, until $work/goes_on is deleted. Writes the
# time of each load, in ms, to $work/loads.
reload() {
  local config=$work/models/$model/config.textproto begin i
  for ((i = 1; ; ++i)); do
    begin=$(date +%s%3N)
    [[ -e $work/goes_on ]] || break
    echo "# $i" >>"$config"
    if timeout 20 "$client" load --admin_address "$admin_address" "$model" >>"$logs/reload_loads.log" 2>&1 </dev/null; then
      echo $(($(date +%s%3N) - begin)) >>"$work/loads"
    else
      echo failed >>"$work/loads"
    fi
    begin=$((begin + 1000 - $(date +%s%3N)))
    ((begin <= 0)) || sleep "0.$(printf '%03d' "$((begin < 999 ? begin : 999))")"
  done
}

run_reload() {
  local rate p50 p99 sent ok steady_rate steady_p50 steady_p99 reloader
  step "Reload"
  has_time $((5 * seconds + 4)) "reload" || return 0
  : >"$work/loads"
  : >"$logs/reload_loads.log"
  touch "$work/goes_on"
  reload &
  reloader=$!
  measure reload "$address" $((5 * seconds)) --warm_up 500ms --concurrency "$many" "${scans[@]}"
  rm -f "$work/goes_on"
  wait "$reloader"
  read -r rate p50 p99 sent ok < <(numbers "$logs/reload.json" scans_per_second latency_ms.p50 latency_ms.p99 \
    requests ok)
  read -r steady_rate steady_p50 steady_p99 < <(numbers "$logs/closed_$many.json" scans_per_second latency_ms.p50 \
    latency_ms.p99)
  report "## Reload every second, $many clients" "" "| | scans/s | p50 ms | p99 ms |" "|---|---|---|---|" \
    "| without (closed loop) | $steady_rate | $steady_p50 | $steady_p99 |" "| with | $rate | $p50 | $p99 |" "" \
    "$(grep -c '^[0-9]' "$work/loads" || true) loads (the slowest $(sort -n "$work/loads" | tail -n 1) ms), $(
      grep -c failed "$work/loads" || true) failed. $sent requests, $ok answered." ""
  if [[ $sent != "$ok" || ! -s $work/loads ]] || grep -q failed "$work/loads"; then fail; fi
}

run_versions() {
  local newest next status=0
  step "Versions"
  has_time $((versions_seconds + 10)) "versions" || return 0
  newest=$(find "$work/models/$model" -mindepth 1 -maxdepth 1 -regex '.*/[0-9]+' -printf '%f\n' | sort -n | tail -n 1)
  next=$((newest + 1))
  report "## Versions $newest and $next, one after the other every second, $many clients" ""
  {
    "$here/turn_labels.py" "$work/models/$model/$newest" "$work/models/$model/$next" &&
      timeout 60 "$client" load --admin_address "$admin_address" "$model" &&
      timeout $((versions_seconds + 60)) "$reload_check" --address "$address" --admin_address "$admin_address" --model "$model" \
        --repository "$work/models" --concurrency "$many" --duration "${versions_seconds}s" "${scans[@]}"
  } >"$logs/versions.log" 2>&1 </dev/null || status=$?
  report "$(sed 's/^/- /' "$logs/versions.log")" ""
  if ((status != 0)); then
    fail
    report "**versions FAILED (status $status)**" ""
  fi
}

# The parts mixed, reload and versions use 8 clients, or the last number of --clients if it does not contain 8.
many=${clients##* }
[[ " $clients " != *" 8 "* ]] || many=8
capacity=0
: >"$work/report"
report "# voxserve under load" "" "| | |" "|---|---|" "| date | $(date -u '+%Y-%m-%d %H:%M UTC') |" \
  "| GPU | $(gpus | sort | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /' | paste -sd, - | grep . || echo none) |" \
  "| CPU | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(cores) cores, clients and server |" \
  "| commit | $(built_commit) |" "| model | $model |" \
  "| scans | $(printf '%s\n' "${scans[@]}" | sed 's|.*/||' | paste -sd' ' -) |" ""

step "Start"
start_echo
start_server
for part in closed_loop overload mixed streams reload versions; do "run_$part"; done

scrape "$work/at_end"
report "## The server's own account of the run" "" "| | |" "|---|---|" \
  "| frames | $(total "$work/at_end" voxserve_frames_total) |" \
  "| requests a batch, mean | $(calculate "$(total "$work/at_end" voxserve_batch_requests_sum)/$(
    total "$work/at_end" voxserve_batch_requests_count)") |" \
  "| error of the predicted times, mean | $(calculate "$(
    total "$work/at_end" voxserve_latency_prediction_error_ratio_sum)/$(
    total "$work/at_end" voxserve_latency_prediction_error_ratio_count)") |"
for reason in superseded unmeetable given_up expired cancelled queue_full draining; do
  report "| did not run: $reason | $(total "$work/at_end" voxserve_frames_dropped_total "reason=\"$reason\"") |"
done
for kind in weights batches; do
  report "| device memory, $kind, MB | $(calculate "$(
    total "$work/at_end" voxserve_device_memory_bytes "kind=\"$kind\"")/1e6") |"
done
report ""

stop "$server_pid"
if grep -q ' ERROR ' "$logs/server.log"; then
  fail
  report "**The server's log has errors: $(grep -m 1 ' ERROR ' "$logs/server.log")**" ""
fi
report "All of it took $SECONDS s."
((num_failures == 0)) || report "" "**$num_failures measurements FAILED or were left out.**"

step "Report"
cat "$work/report"
cp "$work/report" "$out"
say "written to $out; logs in $logs"
((num_failures == 0))
