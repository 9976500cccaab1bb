#!/usr/bin/env bash
# Runs built fuzzers, each for a time; tests/fuzz/run.sh calls it, and so can a machine that a build was copied to.
#
#   tests/fuzz/fuzz_all.sh PROGRAMS CORPUS SECONDS OUT [JOBS]
#
# PROGRAMS: the folder of fuzz_NAME. CORPUS: a folder of inputs for each, CORPUS/NAME. OUT gets findings/ (the inputs
# that break one), logs/ and corpus/NAME (new inputs that reach more code). JOBS run at once: by default one a core.
# It prints a line for each fuzzer, and exits with 1 where one found something.
set -euo pipefail

programs=$(realpath "$1") corpus=$(realpath "$2") seconds=$3 jobs=${5:-$(nproc)}
mkdir -p "$4/findings" "$4/logs"
out=$(realpath "$4")
# MiB that the process and one allocation may take. An input of at most max_len bytes asks for no more:
# readers allocate at most 264 bytes a byte (client/cpp/io/point_cloud_reader.h).
limits=(-rss_limit_mb=2048 -malloc_limit_mb=256 -timeout=10)
# max_len NAME: texts and headers may be nested, and a parser that calls itself for each level breaks at 100,000 levels.
max_len() {
  case $1 in
    model | model_config | plan | safetensors) echo 131072 ;;
    *) echo 16384 ;;
  esac
}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}

# number LOG NAME: prints the last value of a name in libFuzzer's lines: "#1024 NEW cov: 512 ft: 900 ...".
number() { sed -n "s/^#[0-9].* $2: \([0-9]*\).*/\1/p" "$1" | tail -n 1; }

fuzz_one() {
  local name=$1 log=$out/logs/$1.log status=0 runs
  mkdir -p "$out/corpus/$name"
  (cd "$out/findings" && "$programs/fuzz_$name" -max_len="$(max_len "$name")" "${limits[@]}" -max_total_time="$seconds" -print_final_stats=1 \
    -artifact_prefix="$name-" "$out/corpus/$name" "$corpus/$name" >"$log" 2>&1 </dev/null) || status=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '%s: %s inputs, %s branches reached, %s\n' "$name" "${runs:-?}" "$(number "$log" cov)" \
    "$([[ $status == 0 ]] && echo "nothing found" || echo "FOUND SOMETHING (exit $status): see $log and $out/findings")"
  if [[ $status != 0 ]]; then
    tail -n 30 "$log" >&2
    return 1
  fi
}

status=0 running=0
for path in "$programs"/fuzz_*; do
  [[ -f $path && -x $path ]] || continue
  fuzz_one "$(basename "$path" | sed 's/^fuzz_//')" &
  running=$((running + 1))
  if ((running >= jobs)); then
    wait -n || status=1
    running=$((running - 1))
  fi
done
while ((running > 0)); do
  wait -n || status=1
  running=$((running - 1))
done
exit "$status"
