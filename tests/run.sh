#!/usr/bin/env bash
# Every test that this machine can run. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/steps.sh"

usage() {
  cat <<'HELP'
tests/run.sh [--filter REGEX] [--sanitize asan-ubsan|tsan [--exposed]] [--fuzz [SECONDS]] [--tidy [all]]

Installs what is missing, builds the preset "dev", runs the C++ tests (ctest: unit, integration, gpu) and the Python
tests (pytest: client/python, tests/*), and lists what was skipped and why. Exits with 1 where
a test failed. The last line is `N passed, N failed, N skipped`.

  --filter REGEX       only C++ and Python tests whose name matches
  --sanitize PRESET    the C++ tests under a sanitizer instead: asan-ubsan or tsan (unit and integration; tsan takes an
                       Abseil of its own, which the first run builds from the system's source package, and sees
                       nothing of what gRPC does itself)
  --exposed            with --sanitize: only the programs that test code which untrusted bytes reach (the server, the
                       parsing of models and plans, serving); builds no others
  --fuzz [SECONDS]     the fuzzers of tests/fuzz instead, each for so long (60), from its corpus; what breaks one is kept
                       in build/fuzz/findings
  --tidy [all]         check formatting, the scripts and the Python code instead of testing, and run clang-tidy on the
                       C++ files that differ from the branch main (on main: from the commit before); all: on every one

The first run takes about 25 minutes on 2 cores, most of it compiling; the next ones take minutes. Where nvcc is found
the CUDA kernels are compiled too, which takes some minutes more, and their tests run where there is a GPU (else they
skip). Sanitizers and benchmarks of the GPU: tests/gpu/run.sh. Root is asked for only to install missing packages.
HELP
}

# The programs of --exposed, the slowest first.
exposed_programs=(
  batcher_test engine_test integration_service_test server_codec_test server_http_test server_acceptor_test
  model_manager_test plan_store_test stream_session_test plan_tuner_test server_services_test server_metrics_test
  server_sockets_test server_options_test engine_tensor_test model_loading_test model_repository_test model_table_test
)
# Tests of the above that --exposed leaves out: they measure rates, or run whole scans for minutes. The unsanitized tests
# run them.
exposed_left_out='*WhoCancelsThousands*:*WhoFloodsItIsCutOff*:*VehiclesWhoseDeadlinesPass*:*NobodyStarvesAmongAHundred*'
exposed_left_out+=':*AsManyClientsAsPlaces*:*GoodputStaysAtCapacity*:*ManyTasksAtOnce*:*ThatGiveTheSameAnswer*'

preset=dev filter='' tidy='' exposed=false fuzz=''
while (($# > 0)); do
  case $1 in
    --filter | --sanitize)
      (($# > 1)) || die "$1 needs a value; see --help"
      if [[ $1 == --filter ]]; then filter=$2; else preset=$2; fi
      shift
      ;;
    --exposed) exposed=true ;;
    --fuzz)
      fuzz=60
      if [[ ${2:-} =~ ^[0-9]+$ ]]; then
        fuzz=$2
        shift
      fi
      ;;
    --tidy)
      tidy=changed
      if [[ ${2:-} == all ]]; then
        tidy=all
        shift
      fi
      ;;
    -h | --help) usage && exit ;;
    *) die "unknown option $1; see --help" ;;
  esac
  shift
done
[[ " dev asan-ubsan tsan " == *" $preset "* ]] || die "--sanitize takes asan-ubsan or tsan, not '$preset'"

if $exposed && [[ $preset == dev || -n $filter ]]; then die "--exposed goes with --sanitize alone"; fi
if [[ -n $tidy ]]; then
  exec "$ROOT/tests/tidy.sh" "$tidy"
fi
if [[ -n $fuzz ]]; then
  exec "$ROOT/tests/fuzz/run.sh" "$fuzz"
fi

results=$BUILD/$preset/results
expected=()
# Real scans that may not be part of the repository; a test that needs them skips where they are missing.
export VOXSERVE_SHARED_DATA=${VOXSERVE_SHARED_DATA:-$ROOT/../shared/data}

step "1/4 What is missing"
sets=(build test python)
[[ $preset != tsan ]] || sets+=(tsan)
"$ROOT/deploy/install.sh" "${sets[@]}"
note_gpu

step "2/4 Build the preset '$preset' (20 minutes the first time on 2 cores, then what changed)"
targets=()
if $exposed; then targets=("${exposed_programs[@]}"); fi
build_preset "$preset" ${targets[@]+"${targets[@]}"}

step "3/4 C++ tests (a few minutes)"
rm -rf "$results"
mkdir -p "$results"
convert_spconv_outputs "$BUILD/venv/bin/python" "$BUILD/$preset"
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1:history_size=4:suppressions=$ROOT/tests/tsan.supp}
# run_exposed PROGRAM: runs it and writes PROGRAM.xml.
run_exposed() {
  local path
  path=$(find "$BUILD/$preset/tests" -type f -name "$1")
  logged "$BUILD/logs/$preset-$1.log" timeout 1800 "$path" --gtest_filter="-$exposed_left_out" \
    --gtest_output="xml:$results/$1.xml" || true
  quiet "$1"
}

# The summary below judges the results; exit statuses say less.
if $exposed; then
  # Not by ctest: it would also run what an earlier build left here.
  for program in "${exposed_programs[@]}"; do
    expected+=("$results/$program.xml")
    while (($(jobs -rp | wc -l) >= $(cores))); do wait -n || true; done
    run_exposed "$program" &
  done
  wait
else
  expected+=("$results/ctest.xml")
  labels='^(unit|integration|gpu)$'
  [[ $preset == dev ]] || labels='^(unit|integration)$'
  ctest --test-dir "$BUILD/$preset" --label-regex "$labels" ${filter:+--tests-regex "$filter"} --parallel "$(cores)" \
    --output-on-failure --output-junit "$results/ctest.xml" --no-tests=ignore </dev/null || true
fi

if [[ $preset == dev ]]; then
  step "4/4 Python tests (15 minutes, most of it attacks, faults and machines that fail)"
  export VOXSERVE_BINARY=$BUILD/dev/server/voxserve VOXSERVE_CLIENT_BINARY=$BUILD/dev/client/cpp/voxserve-client
  python_tests() {
    local folder
    for folder in "$@"; do
      # The package is tested as it is installed.
      (cd "$ROOT/$folder" && PYTHONPATH=$ROOT/tests "$BUILD/venv/bin/python" -m pytest -q -p no:cacheprovider \
        ${filter:+-p pytest_filter "--name-regex=$filter"} --junitxml "$results/${folder//\//-}.xml" . </dev/null) || true
    done
  }
  # Most of these tests wait for servers, so two rows of folders run side by side. The last folder runs alone: its tests
  # measure how soon a server ends while attacks load the machine.
  row=(client/python/tests tests/oracles tests/support tests/bench tests/deploy tests/faults tests/soak)
  row_beside=(tests/integration tests/machines)
  set -m  # a process group of its own, which ends with this script
  python_tests "${row[@]}" >"$BUILD/logs/python.log" 2>&1 &
  row_group=$!
  set +m
  trap 'kill -- "-$row_group" 2>/dev/null || true' EXIT
  python_tests "${row_beside[@]}"
  wait
  cat "$BUILD/logs/python.log"
  python_tests tests/hostile
  for folder in "${row[@]}" "${row_beside[@]}" tests/hostile; do expected+=("$results/${folder//\//-}.xml"); done
fi

step "Summary"
# Where a result file is missing, something broke before its first test: a failure too.
"$BUILD/venv/bin/python" "$ROOT/tests/summary.py" "${expected[@]}"
