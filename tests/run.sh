#!/usr/bin/env bash
# Every test that this machine can run. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/steps.sh"

usage() {
  cat <<'HELP'
tests/run.sh [--filter REGEX] [--program NAME...] [--sanitize asan-ubsan|tsan [--exposed]] [--and-sanitized]
             [--fuzz [SECONDS]] [--tidy [all]]

Installs what is missing, builds the preset "dev", runs the C++ tests (GoogleTest: unit, integration, gpu) and the Python
tests (pytest: client/python, tests/*), and lists the skipped tests with reasons. Exits with 1 if a test failed. The
last line is `N passed, N failed, N skipped`.

  --filter REGEX       runs only C++ and Python tests whose name matches
  --program NAME...    builds and runs these C++ test programs alone, such as engine_executor_test: the quick way from a
                       changed file to its room's tests (build/dev/tests/programs.txt lists them)
  --sanitize PRESET    runs only the C++ tests (unit and integration), under a sanitizer: asan-ubsan or tsan. The first
                       run with tsan builds an Abseil with ThreadSanitizer from the system's source package; tsan
                       sees no races inside gRPC
  --exposed            with --sanitize: builds and runs only the programs that test code which untrusted bytes reach (the
                       server, the parsing of models and plans, serving)
  --and-sanitized      for continuous integration: also builds the benchmarks, and runs --sanitize asan-ubsan --exposed
                       at the same time as the tests
  --fuzz [SECONDS]     runs only the fuzzers of tests/fuzz, each for SECONDS (default 60), from its corpus; inputs that
                       break a fuzzer are kept in build/fuzz/findings
  --tidy [all]         runs no tests: checks formatting, the scripts and the Python code, and runs clang-tidy on the C++
                       files that differ from the branch main (on main: from the last commit); all: on every C++ file

The first run compiles for most of its time. If nvcc is found, the CUDA kernels are compiled too; their tests run if
there is a GPU, and skip otherwise. tests/gpu/run.sh runs sanitizers and benchmarks on a GPU. The script asks for root
only to install missing packages.
HELP
}

# The programs of --exposed.
exposed_programs=(
  engine_admission_test engine_serving_test integration_service_test server_codec_test server_http_test
  server_acceptor_test engine_tuner_test engine_streams_test engine_models_test server_services_test server_metrics_test
  server_sockets_test server_options_test engine_tensor_test engine_model_test
)
# Tests of the above that --exposed leaves out: they measure rates, or run whole scans for minutes. The unsanitized tests
# run them.
exposed_left_out='*WhoCancelsThousands*:*WhoFloodsItIsCutOff*:*VehiclesWhoseDeadlinesPass*:*NobodyStarvesAmongAHundred*'
exposed_left_out+=':*AsManyClientsAsPlaces*:*GoodputStaysAtCapacity*:*ManyTasksAtOnce*:*ThatGiveTheSameAnswer*'
exposed_left_out+=':*SweepsTest*:*WarmUpTest*:*PlanTuningTest*:*PlanSearch*:*ABatchThatDoesNotFitIsRunInParts*'
exposed_left_out+=':*FairSharesTest*/TwoDevices:*OverloadTest*/FourByTwo:*TextIsUtf8AsProtobufHasIt*'
# gRPC has too little time there to tell of these calls before the guards judge their bytes.
exposed_left_out+=':*KilledClientsTest.WhileUploads*'

preset=dev filter='' tidy='' exposed=false and_sanitized=false fuzz='' programs=()
while (($# > 0)); do
  case $1 in
    --filter | --sanitize)
      (($# > 1)) || die "$1 needs a value; see --help"
      if [[ $1 == --filter ]]; then filter=$2; else preset=$2; fi
      shift
      ;;
    --program)
      while (($# > 1)) && [[ $2 != --* ]]; do
        programs+=("$2")
        shift
      done
      ((${#programs[@]} > 0)) || die "--program needs a name; see --help"
      ;;
    --exposed) exposed=true ;;
    --and-sanitized) and_sanitized=true ;;
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
if $exposed; then programs=("${exposed_programs[@]}"); fi
if [[ -n $tidy ]]; then
  exec "$ROOT/tests/tidy.sh" "$tidy"
fi
if [[ -n $fuzz ]]; then
  exec "$ROOT/tests/fuzz/run.sh" "$fuzz"
fi

results=$BUILD/$preset/results
# Some programs may be run while all tests are: a test of CONTRIBUTING.md does.
if [[ $preset == dev ]] && ((${#programs[@]} > 0)); then results+=-of-programs; fi
expected=()
# Real scans that may not be part of the repository; a test that needs them skips where they are missing.
export VOXSERVE_SHARED_DATA=${VOXSERVE_SHARED_DATA:-$ROOT/../shared/data}

step "1/4 What is missing"
sets=(build test python)
case $preset in
  tsan) sets+=(tsan) ;;
  asan-ubsan) sets+=(clang) ;;
esac
"$ROOT/deploy/install.sh" "${sets[@]}"
note_gpu
python=$BUILD/venv/bin/python

step "2/4 Build the preset '$preset' (the first time takes minutes, then what changed)"
targets=(${programs[@]+"${programs[@]}"})
if $and_sanitized; then targets=(all benchmarks); fi
build_preset "$preset" ${targets[@]+"${targets[@]}"}

sanitized=$BUILD/logs/sanitized.log sanitized_group=''
if $and_sanitized; then
  set -m  # a process group of its own, which ends with this script
  "${BASH_SOURCE[0]}" --sanitize asan-ubsan --exposed >"$sanitized" 2>&1 </dev/null &
  sanitized_group=$!
  set +m
  trap 'kill -- "-$sanitized_group" 2>/dev/null || true' EXIT
  quiet "the sanitized tests are built and run beside these: $sanitized"
fi

step "3/4 C++ tests (a few minutes)"
rm -rf "$results"
mkdir -p "$results"
convert_spconv_outputs "$python" "$BUILD/$preset"
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
[[ $preset != asan-ubsan ]] || export ASAN_SYMBOLIZER_PATH=${ASAN_SYMBOLIZER_PATH:-/usr/bin/llvm-symbolizer-14}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1:history_size=4:suppressions=$ROOT/tests/tsan.supp}
options=(--jobs "$(cores)" ${filter:+--filter "$filter"})
if $exposed; then options+=(--leave-out "$exposed_left_out"); fi
# Whole networks take 20 times as long under ThreadSanitizer.
if [[ $preset == tsan ]]; then options+=(--test-seconds 1800); fi
# The summary below judges the results. Where the programs could not run at all, no file says so.
"$python" "$ROOT/tests/run_programs.py" "$BUILD/$preset" "$results/programs" "${options[@]}" \
  ${programs[@]+"${programs[@]}"} </dev/null || expected+=("$results/programs that could not run")
# A filter may match no C++ test.
for file in "$results/programs/"*.xml; do
  if [[ -e $file || -z $filter ]]; then expected+=("$file"); fi
done

# Most Python tests wait for servers and for time, so folders run side by side, in these rows. Tests marked "alone" measure
# how soon something ends beside much work: nothing else runs then.
rows=("client/python/tests tests/oracles tests/support tests/bench tests/deploy tests/faults tests/soak"
  "tests/integration tests/machines tests/hostile")
alone=(tests/integration tests/soak tests/hostile)
# python_tests FOLDER RESULT [OPTIONS...]: runs the folder's tests and writes RESULT.xml.
python_tests() {
  local folder=$1 result=$results/${2//\//-}.xml
  shift 2
  # The package is tested as it is installed. The engine as a module (voxserve.Engine) is in the build's folder.
  (cd "$ROOT/$folder" && PYTHONPATH=$ROOT/tests:$BUILD/dev/client/python/native "$python" -m pytest -q -p no:cacheprovider \
    ${filter:+-p pytest_filter "--name-regex=$filter"} --junitxml "$result" "$@" . </dev/null) || true
}
python_row() {  # FOLDER...
  local folder
  for folder in "$@"; do
    case $folder in
      # A file's tests share servers, and so stay in one process.
      client/python/tests | tests/hostile) python_tests "$folder" "$folder" -m 'not alone' -n 4 --dist loadfile ;;
      *) python_tests "$folder" "$folder" -m 'not alone' ;;
    esac
  done
}

has_python=false
if [[ $preset == dev ]] && ((${#programs[@]} == 0)); then has_python=true; fi
if $has_python; then
  step "4/4 Python tests (most of it attacks, faults and machines that fail)"
  export VOXSERVE_BINARY=$BUILD/dev/server/voxserve VOXSERVE_CLIENT_BINARY=$BUILD/dev/client/cpp/voxserve-client
  row_groups=()
  set -m  # process groups of their own, which end with this script
  for number in "${!rows[@]}"; do
    # shellcheck disable=SC2086  # the row's folders are words
    python_row ${rows[number]} >"$BUILD/logs/python-$number.log" 2>&1 &
    row_groups+=("$!")
  done
  set +m
  trap 'kill -- ${row_groups[@]/#/-} ${sanitized_group:+"-$sanitized_group"} 2>/dev/null || true' EXIT
  for number in "${!rows[@]}"; do
    wait "${row_groups[number]}" || true
    cat "$BUILD/logs/python-$number.log"
  done
fi

status=0
if $and_sanitized; then
  step "The sanitized tests"
  wait "$sanitized_group" || status=$?
  cat "$sanitized"
fi

if $has_python; then
  step "Python tests that nothing may run beside"
  for folder in "${alone[@]}"; do python_tests "$folder" "$folder-alone" -m alone; done
  # shellcheck disable=SC2048  # the rows' folders are words
  for folder in ${rows[*]} "${alone[@]/%/-alone}"; do expected+=("$results/${folder//\//-}.xml"); done
fi

step "Summary"
# Where a result file is missing, something broke before its first test: a failure too.
"$python" "$ROOT/tests/summary.py" "${expected[@]}" || status=$?
exit "$status"
