#!/usr/bin/env bash
# Builds server, clients and tests for aarch64 and runs them here, under qemu. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/steps.sh"

usage() {
  cat <<'HELP'
tests/aarch64.sh [--no-tests | --no-server] [PROGRAM...]

Cross-builds the preset "aarch64", then:
  1. runs the test programs PROGRAM..., by default those of kernels/ that need no GPU and a few of engine/, under qemu-user
     (qemu computes each multiplication in software, so allow half an hour on 2 cores);
  2. serves the demo's MinkUNet by the aarch64 server under qemu, labels the demo's scan, and counts the labels that differ
     from those of this machine's own server, on its CPU and in float32. That server is build/native's or build/dev's, or
     what VOXSERVE_BINARY names: deploy/demo.sh or tests/run.sh builds it. (Images' convolutions take too long under qemu.)

Exit status 1 where a test fails or more than one label in 10,000 differs.
HELP
}

# What the vectors of a processor, its fused multiplications and its weak order of memory accesses can break.
default_programs=(kernels_core_test kernels_coordinates_test kernels_curves_test kernels_conv_test
  kernels_implicit_gemm_test kernels_points_test kernels_farthest_test kernels_rows_test kernels_attention_test
  kernels_image_test kernels_boxes_test kernels_test engine_tensor_test engine_ops_test engine_executor_test)

tests=true server=true programs=()
while (($# > 0)); do
  case $1 in
    -h | --help) usage && exit ;;
    --no-tests) tests=false ;;
    --no-server) server=false ;;
    -*) die "unknown option $1; see --help" ;;
    *) programs+=("$1") ;;
  esac
  shift
done
((${#programs[@]} > 0)) || programs=("${default_programs[@]}")

sysroot=$BUILD/sysroot-aarch64 out=$BUILD/aarch64 results=$BUILD/aarch64/results
scan=$ROOT/deploy/scans/pandaset_070.bin
export VOXSERVE_SHARED_DATA=${VOXSERVE_SHARED_DATA:-$ROOT/../shared/data}

# start_server LOG COMMAND...: starts a server of the demo's MinkUNet, waits until it is ready, sets server_pid and port.
start_server() {
  local log=$1 i
  shift
  "$@" --model_repository "$results/models" --port 0 --http_port 0 --devices cpu --stuck_batch_time inf \
    >"$log" 2>&1 </dev/null &
  server_pid=$!
  for ((i = 0; i < 1800; ++i)); do
    kill -0 "$server_pid" 2>/dev/null || break
    port=$(sed -n 's/.* serving .*grpc_port=\([0-9]*\).*/\1/p' "$log" | head -n 1)
    if [[ -n $port ]] && "$client" health --address "localhost:$port" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  tail -n 20 "$log" >&2
  die "the server was not ready: $*"
}

stop_server() {
  kill "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || die "the server ended with an error"
  server_pid=''
}

# labels_of NAME COMMAND...: serves by COMMAND and writes the labels to NAME.npy.
labels_of() {
  local name=$1 begin=$SECONDS
  shift
  start_server "$results/$name.log" "$@"
  local ready=$((SECONDS - begin))
  "$client" infer --model minkunet --address "localhost:$port" --timeout 30m --save "$results/$name.npy" "$scan" \
    --truth "${scan%.bin}.truth.u8" >"$results/$name.txt" || die "the server for $name did not label the scan"
  stop_server
  say "$name: ready after $ready s, labels after $((SECONDS - begin - ready)) s more"
}

step "1/3 The arm64 libraries, and the build (minutes; then what changed)"
"$ROOT/deploy/install.sh" build test cross
"$ROOT/deploy/cross/sysroot.sh"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || die "there is no qemu-aarch64-static"
targets=()
if $server; then targets+=(voxserve voxserve-client voxserve-tune voxserve-calibrate); fi
if $tests; then targets+=("${programs[@]}"); fi
build_preset aarch64 "${targets[@]}"
mkdir -p "$results"
failed=false

if $tests; then
  step "2/3 Tests under $("$qemu" --version | head -n 1)"
  rm -rf "$results/programs"
  python3 "$ROOT/tests/run_programs.py" "$out" "$results/programs" --jobs "$(cores)" --test-seconds 1800 \
    --leave-out '*Cuda*' --emulator "$qemu -L $sysroot" "${programs[@]}" </dev/null || failed=true
  python3 "$ROOT/tests/summary.py" "$results"/programs/*.xml || failed=true
fi

if $server; then
  step "3/3 The demo's scan, by the server for aarch64 and by this machine's"
  server_pid='' port=''
  trap '[[ -z $server_pid ]] || kill "$server_pid" 2>/dev/null || true' EXIT
  native=${VOXSERVE_BINARY:-}
  for build in native dev; do
    [[ -n $native || ! -x $BUILD/$build/server/voxserve ]] || native=$BUILD/$build/server/voxserve
  done
  client=$(dirname "$native")/../client/cpp/voxserve-client
  [[ -x $native && -x $client ]] || die "this machine's own server is not built" "deploy/demo.sh builds build/native."
  rm -rf "$results/models"
  mkdir -p "$results/models"
  cp -R "$ROOT/deploy/models/minkunet" "$results/models/"
  own=$(uname -m)
  labels_of "$own" "$native"
  labels_of aarch64 "$qemu" -L "$sysroot" "$out/server/voxserve"
  labels=$(($(stat -c %s "$results/aarch64.npy") - 128))  # bytes behind NumPy's header: a label each
  [[ $(stat -c %s "$results/$own.npy") == $((labels + 128)) ]] || die "the two servers sent different numbers of labels"
  differ=$(cmp -l "$results/$own.npy" "$results/aarch64.npy" | wc -l || true)
  say "labels that differ between $own and aarch64: $differ of $labels"
  ((differ * 10000 <= labels)) || failed=true
fi
! $failed
