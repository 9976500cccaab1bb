#!/usr/bin/env bash
# Runs all tests and benchmarks that need a GPU. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/steps.sh"
# shellcheck source=tests/gpu/carried_build.sh
source "$ROOT/tests/gpu/carried_build.sh"

usage() {
  cat <<'HELP'
tests/gpu/run.sh [BUILD] [--out FILE] [--only tests|sanitizer|bench] [--programs REGEX] [--all] [--commit ID]

Runs a build's GPU programs on a machine with an NVIDIA GPU, and prints one report in Markdown:

  tests      the GoogleTest programs that need a GPU (BUILD/tests/programs.txt), and the tests of the other programs
             whose names contain CUDA
  sanitizer  compute-sanitizer's memcheck, racecheck and synccheck over the tests of the kernels. racecheck needs a
             build with -DVOXSERVE_RACECHECK=ON; without it, it takes arrivals at barriers for races
  bench      the benchmarks whose names contain "cuda", bench/accuracy_bench, and digests of networks' answers on a
             GPU, which must be equal in two processes (bench/digest_bench)

It builds nothing: BUILD (default build/dev) may come from another machine. It needs neither CMake nor a compiler, and
the tests read the scans and models of this checkout. Libraries that this machine lacks are taken from BUILD/lib.

  --out FILE        file for the report (default: BUILD/gpu/report.md); the logs are in the same folder
  --only STEP       run only this step; may be given several times
  --programs REGEX  only programs whose path below BUILD/tests matches
  --all             every test of those programs, not only those of CUDA
  --commit ID       the built commit, if git cannot tell

Exit codes: 0 everything ran and passed, 1 something failed, timed out or could not run, 77 there is no GPU.
HELP
}

# Each program may run for this many seconds.
test_limit=600 sanitizer_limit=900 bench_limit=300
cuda_tests='*Cuda*:*CUDA*:*Gpu*'
# The sanitizer leaves out tests of whole scans, which take minutes under it and find nothing that small tests do not.
# racecheck leaves out more tests: it is much slower, since it runs one launch at a time.
left_out_of_memcheck='*RealScan*:*Large*:*Million*:*WholeScan*:*2To31*'
# It also leaves out tests that run an implicit GEMM's blocks hundreds of times, for the same reason.
left_out_of_memcheck+=':*ImplicitGemmTest.EveryKind*:*ImplicitGemmTest.EveryWidth*:*ImplicitGemmTest.EveryAlignment*'
left_out_of_memcheck+=':*ImplicitGemmFuzzTest*:*ImplicitGemmChainTest*'
left_out_of_memcheck+=':*Int8ImplicitGemmTest.EveryType*:*Int8ImplicitGemmTest.ManyTiles*'
left_out_of_memcheck+=':*Int8ImplicitGemmTest.HasTheBytes*'
# shellcheck disable=SC2034  # run_sanitizer reads it by a computed name
left_out_of_synccheck=$left_out_of_memcheck
# shellcheck disable=SC2034  # run_sanitizer reads it by a computed name
left_out_of_racecheck=$left_out_of_memcheck:'*MorePoints*:*EveryGrouping*:*EveryRule*:*AsManySamples*:*InEveryTile*'

build=$BUILD/dev out='' commit='' programs='' steps=()
while (($# > 0)); do
  case $1 in
    --out | --only | --programs | --commit)
      (($# > 1)) || die "$1 needs a value; see --help"
      case $1 in
        --out) out=$2 ;;
        --only) steps+=("$2") ;;
        --programs) programs=$2 ;;
        --commit) commit=$2 ;;
      esac
      shift
      ;;
    --all) cuda_tests='*' ;;
    -h | --help) usage && exit ;;
    -*) die "unknown option $1; see --help" ;;
    *) build=$1 ;;
  esac
  shift
done
((${#steps[@]} > 0)) || steps=(tests sanitizer bench)
for name in "${steps[@]}"; do
  [[ " tests sanitizer bench " == *" $name "* ]] || die "--only takes tests, sanitizer or bench, not '$name'"
done

require_gpu
[[ -d $build/tests ]] || die "$build holds no tests; build it with tests/run.sh, or name another folder"
build=$(realpath "$build")
out=$(realpath -m "${out:-$build/gpu/report.md}")
logs=$(dirname "$out")
mkdir -p "$logs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

use_carried_build "$build"
convert_spconv_outputs python3 "$build" || warn "the outputs of spconv were not converted: their tests skip"

num_failures=0
fail() { num_failures=$((num_failures + 1)); }

# matching FOLDER NAME_PATTERN: prints the programs in BUILD/tests/FOLDER whose names match, as paths below BUILD/tests.
matching() {
  (cd "$build/tests" && find "$1" -type f -name "$2" -perm -u+x 2>/dev/null) | sed 's|^\./||' |
    { grep -E -- "$programs" || true; } | LC_ALL=C sort
}

# selection PROGRAM: prints the GoogleTest filter that selects the program's tests that need a GPU.
selection() {
  if grep -qx "tests/$1 .* gpu" "$build/tests/programs.txt" 2>/dev/null; then echo '*'; else echo "$cuda_tests"; fi
}

# limited SECONDS LOG COMMAND...: runs the command with a time limit and sets `status` and `seconds`. Its output is
# appended to LOG and written to $work/last.
limited() {
  local limit=$1 log=$2 begin=$SECONDS
  shift 2
  status=0
  timeout --kill-after=10 "$limit" "$@" >"$work/last" 2>&1 </dev/null || status=$?
  seconds=$((SECONDS - begin))
  { printf '\n===== %s (status %d, %d s)\n' "$*" "$status" "$seconds" && cat "$work/last"; } >>"$log"
}

# reason: prints why the last program of `limited` ended, unless it ended well.
reason() {
  case $status in
    124) echo "TIMED OUT after $seconds s" ;;
    127) grep -m 1 'error while loading' "$work/last" || echo "could not start" ;;
    13[0-9] | 14[0-9]) echo "killed by signal $((status - 128))" ;;
    *) echo "status $status" ;;
  esac
}

# gtest_count WORD: prints the number of tests from the line of the last program's summary that begins with WORD, such
# as "[  PASSED  ] 12 tests.", or 0.
gtest_count() { sed -nE "s/^\[ +$1 +\] ([0-9]+) tests?[.,].*/\1/p" "$work/last" | tail -n 1 | grep . || echo 0; }

run_tests() {
  local log=$logs/tests.log program filter selected passed failed skipped note found=0
  : >"$log"
  report "## Tests" "" "| program | passed | failed | skipped | s | |" "|---|---|---|---|---|---|"
  while read -r program; do
    filter=$(selection "$program")
    limited 60 "$log" "$build/tests/$program" --gtest_list_tests "--gtest_filter=$filter"
    selected=$(grep -c '^  ' "$work/last" || true)
    if ((status != 0)); then
      found=$((found + 1))
      fail
      report "| $program | | | | | **$(reason)** |"
      continue
    fi
    ((selected > 0)) || continue
    found=$((found + 1))
    quiet "$program ($selected tests)"
    limited "$test_limit" "$log" "$build/tests/$program" "--gtest_filter=$filter"
    passed=$(gtest_count PASSED) failed=$(gtest_count FAILED) skipped=$(gtest_count SKIPPED) note=''
    if ((status != 0 && failed == 0)) || ((passed + failed + skipped == 0)); then
      note="**$(reason)**"
    elif ((failed > 0)); then
      note="**FAILED**: $(sed -nE 's/^\[  FAILED  \] ([^ ,]+)$/\1/p;s/^\[  FAILED  \] ([^ ]+), where.*/\1/p' "$work/last" |
        sort -u | head -n 5 | paste -sd ' ' -)"
    elif ((passed == 0)); then
      note='**nothing ran, everything skipped**'
    fi
    [[ -z $note ]] || fail
    report "| $program | $passed | $failed | $skipped | $seconds | $note |"
  done < <(matching . '*_test')
  ((found > 0)) || { fail && report "| **no program with such tests** | | | | | |"; }
  report ""
}

run_sanitizer() {
  local log=$logs/sanitizer.log sanitizer program tool filter left_out options selected summary note found=0
  : >"$log"
  report "## compute-sanitizer" "" "| program | tool | tests | result | s | |" "|---|---|---|---|---|---|"
  sanitizer=$(command -v compute-sanitizer || true)
  [[ -n $sanitizer ]] || sanitizer=/usr/local/cuda/bin/compute-sanitizer
  if [[ ! -x $sanitizer ]]; then
    fail
    report "| | | | | | **NOT RUN: no compute-sanitizer on this machine** |" ""
    return
  fi
  while read -r program; do
    for tool in memcheck racecheck synccheck; do
      left_out=left_out_of_$tool options=()
      # By default, synccheck watches fewer barriers than the blocks of a warp-specialized kernel have in total.
      [[ $tool != synccheck ]] || options=(--num-cuda-barriers 100000)
      filter="$(selection "$program")-${!left_out}"
      limited 60 "$log" "$build/tests/$program" --gtest_list_tests "--gtest_filter=$filter"
      selected=$(grep -c '^  ' "$work/last" || true)
      if ((status != 0)); then
        found=$((found + 1))
        fail
        report "| $program | $tool | | | | **$(reason)** |"
        continue
      fi
      ((selected > 0)) || continue
      found=$((found + 1))
      quiet "$program under $tool ($selected tests)"
      limited "$sanitizer_limit" "$log" "$sanitizer" --tool "$tool" "${options[@]}" --error-exitcode 99 \
        "$build/tests/$program" "--gtest_filter=$filter"
      # The tools end with "========= ERROR SUMMARY: 0 errors" or "========= RACECHECK SUMMARY: 0 hazards displayed (0
      # errors, 0 warnings)".
      summary=$(sed -nE 's/^=+ (ERROR|RACECHECK) SUMMARY: //p' "$work/last" | tail -n 1)
      note=''
      if [[ -z $summary ]]; then
        note="**NO RESULT, $(reason)**: $(sed -nE 's/^=+ (Error|Internal.*|.*not supported.*)/\1/p' "$work/last" | head -n 1)"
      elif ((status == 99)) || [[ $summary != "0 "* ]]; then
        note='**ERRORS**'
      elif ((status != 0)); then
        note="**$(reason)**"
      elif (($(gtest_count PASSED) == 0)); then
        note='**nothing ran, everything skipped**'
      fi
      [[ -z $note ]] || fail
      report "| $program | $tool | $selected | $summary | $seconds | $note |"
    done
  done < <(matching kernels '*_test')
  ((found > 0)) || { fail && report "| **no program with such tests** | | | | | |"; }
  report ""
}

run_bench() {
  local log=$logs/bench.log program options found=0
  : >"$log"
  report "## Benchmarks" ""
  while read -r program; do
    found=$((found + 1))
    quiet "$program"
    options=()
    if [[ $program == */digest_bench ]]; then options=(--device cuda --twice); fi
    limited "$bench_limit" "$log" "$build/tests/$program" "${options[@]}"
    report "### $program ($seconds s)" ""
    if ((status != 0)); then
      fail
      report "**FAILED: $(reason)**" ""
    fi
    # Some programs print Markdown, which starts with # or |; it goes into the report unchanged. The # before digests is
    # no Markdown, hence the check for options.
    if ((${#options[@]} == 0)) && grep -m 1 . "$work/last" | grep -q '^[#|]'; then
      cat "$work/last" >>"$work/report"
    else
      report '```' "$(<"$work/last")" '```'
    fi
    report ""
  done < <(matching bench '*cuda*_bench' && matching bench accuracy_bench && matching bench digest_bench)
  ((found > 0)) || { fail && report "**no benchmark**" ""; }
}

report() { printf '%s\n' "$@" >>"$work/report"; }

[[ -n $commit ]] || commit=$(built_commit)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || driver=''
[[ -n $driver ]] || driver=$(sed -nE '1s/.*Module +([0-9.]+).*/\1/p' /proc/driver/nvidia/version 2>/dev/null || true)
cuda=$(sed -nE 's/^set\(CMAKE_CUDA_COMPILER_VERSION "(.*)"\)/\1/p' "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake \
  2>/dev/null | head -n 1) || cuda=''

report "# voxserve on $gpu" "" "| | |" "|---|---|" "| date | $(date -u '+%Y-%m-%d %H:%M UTC') |" \
  "| GPU | $(gpus | sort | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /' | paste -sd, -) |" \
  "| driver | ${driver:-unknown} |" "| CUDA toolkit of the build | ${cuda:-unknown} |" "| commit | $commit |" \
  "| CPU | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(cores) cores |" ""

for name in "${steps[@]}"; do
  step "$name"
  "run_$name"
done
if ((num_failures > 0)); then
  report "**$num_failures of these FAILED or could not run.**"
else
  report "Everything ran and passed."
fi

step "Report"
cat "$work/report"
cp "$work/report" "$out"
say "written to $out; logs in $logs"
((num_failures == 0))
