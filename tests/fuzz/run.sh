#!/usr/bin/env bash
# Runs for tests/run.sh --fuzz: builds the fuzzers and runs each for this many seconds, one per core. New inputs that reach
# more code go to build/fuzz/corpus/NAME. Exits with 1 where a fuzzer found something.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/steps.sh"

seconds=$1
out=$BUILD/fuzz
# Bytes an input may have, and MiB that the process and one allocation may take. An input of this size asks for no more:
# readers allocate at most 264 bytes a byte (client/cpp/io/point_cloud_reader.h).
limits=(-max_len=16384 -rss_limit_mb=2048 -malloc_limit_mb=256 -timeout=10)
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}

step "1/3 What is missing"
"$ROOT/deploy/install.sh" build test fuzz

step "2/3 Build the preset 'fuzz' (10 minutes the first time on 2 cores)"
build_preset fuzz fuzzers

step "3/3 Each fuzzer for $seconds seconds"
mkdir -p "$out/findings" "$out/logs"
fuzz_one() {
  local name=$1 log=$out/logs/$1.log
  mkdir -p "$out/corpus/$name"
  if (cd "$out/findings" && "$out/tests/fuzz/fuzz_$name" "${limits[@]}" -max_total_time="$seconds" -print_final_stats=1 \
    -artifact_prefix="$name-" "$out/corpus/$name" "$ROOT/tests/fuzz/corpus/$name" >"$log" 2>&1 </dev/null); then
    say "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, nothing found"
  else
    warn "$name: found something; the end of $log:"
    tail -n 30 "$log" >&2
    return 1
  fi
}
status=0
running=0
for path in "$ROOT"/tests/fuzz/*_fuzz.cc; do
  name=$(basename "$path" _fuzz.cc)
  fuzz_one "$name" &
  running=$((running + 1))
  if ((running >= $(cores))); then
    wait -n || status=1
    running=$((running - 1))
  fi
done
while ((running > 0)); do
  wait -n || status=1
  running=$((running - 1))
done
exit "$status"
