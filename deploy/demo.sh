#!/usr/bin/env bash
# Leads from a fresh machine to a labelled LiDAR scan. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

usage() {
  cat <<'HELP'
deploy/demo.sh [--keep]

Installs what is missing, builds the server and its client, starts the server with the two trained models of
deploy/models, sends it a real LiDAR scan over gRPC and shows the answers: classes, agreement with labels made by
people, boxes, the time of each stage, a preview in the terminal, and a picture with labels and boxes in build/demo.

  --keep    leave the server running, and print how to stop it

The first run takes 3 minutes on 2 idle cores, mostly for compiling; later runs take seconds. Programs are built for
this machine: for its GPUs, or without GPU code if it has none. The script asks for root only to install missing packages.
Everything else stays in build/ and the compiler's cache.
HELP
}

keep=false
for argument in "$@"; do
  case $argument in
    --keep) keep=true ;;
    -h | --help) usage && exit ;;
    *) die "unknown option $argument; see --help" ;;
  esac
done

demo=$BUILD/demo
server=$BUILD/native/server/voxserve
client=$BUILD/native/client/cpp/voxserve-client
log=$demo/server.log
server_pid=''

# shellcheck disable=SC2317  # called by the trap
stop_server() {
  if [[ -n $server_pid ]] && kill -0 "$server_pid" 2>/dev/null; then
    kill "$server_pid" && wait "$server_pid" 2>/dev/null
  fi
  server_pid=''
}
trap stop_server EXIT
trap 'exit 130' INT TERM

server_failed() {
  printf '%s--- the end of %s ---%s\n' "$dim" "$log" "$plain" >&2
  tail -n 20 "$log" >&2
  die "$1"
}

# http_get PORT PATH: prints the body that this machine's server answers.
http_get() {
  exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$2" >&3
  sed '1,/^\r*$/d' <&3
  exec 3<&- 3>&-
}

# near PATH: prints the path, without the working folder if it begins with that.
near() { printf '%s' "${1#"$PWD"/}"; }

step "1/4 What is missing"
use_own_gpus # without a GPU nothing of CUDA is fetched
"$ROOT/deploy/install.sh" build
note_gpu

step "2/4 Build the server and its client (3 minutes the first time on 2 idle cores, then seconds)"
build_preset native voxserve voxserve-client voxserve-tune voxserve-calibrate

step "3/4 Start the server with deploy/models (seconds)"
mkdir -p "$demo"
: >"$log" # before the loop below reads it
"$server" --model_repository "$ROOT/deploy/models" --port 0 --http_port 0 >"$log" 2>&1 </dev/null &
server_pid=$!
ports=''
for ((i = 0; i < 600; ++i)); do
  kill -0 "$server_pid" 2>/dev/null || server_failed "the server ended while it was starting"
  ports=$(sed -n 's/.* serving .*grpc_port=\([0-9]*\).*http_port=\([0-9]*\).*/\1 \2/p' "$log" | head -n 1)
  [[ -n $ports ]] && "$client" health --address "localhost:${ports% *}" >/dev/null 2>&1 && break
  sleep 0.1
done
((i < 600)) || server_failed "the server was not ready after a minute"
port=${ports% *} http_port=${ports#* }
say "serving gRPC on localhost:$port, HTTP on localhost:$http_port (pid $server_pid, log $(near "$log"))"

step "4/4 Label a real scan and find boxes in it: PandaSet (Hesai, Scale AI), sequence 002, frame 070 (2 seconds)"
"$client" infer --model minkunet --boxes_model centerpoint --address "localhost:$port" "$ROOT/deploy/scans/pandaset_070.bin" \
  --truth "$ROOT/deploy/scans/pandaset_070.truth.u8" --preview --picture "$demo/pandaset_070.png" ||
  server_failed "the scan was not labelled"

step "Results"
say "the picture       $(near "$demo/pandaset_070.png")"
say "the status page   http://localhost:$http_port/$($keep || echo '   (while the server runs: --keep)')"
say "metrics           http://localhost:$http_port/metrics, for example:"
http_get "$http_port" /metrics |
  grep -E '^voxserve_(requests_total|points_total|model_ready|(request|stage)_duration_seconds_sum|build_info)' |
  sed 's/^/      /' || warn "no metrics came from http://localhost:$http_port/metrics"

step "Next steps"
if $keep; then
  say "The server keeps running. Stop it with:  kill $server_pid"
  trap - EXIT
else
  say "$(near "$ROOT/deploy/demo.sh") --keep     # the same, and the server keeps running"
  port=8500
fi
models=$(near "$ROOT/deploy/models") scan=$(near "$ROOT/deploy/scans/pandaset_070.bin")
server=$(near "$server") client=$(near "$client")
$keep || printf '    %s\n' "$server --model_repository $models"
cat <<NEXT
    $client infer --model minkunet --address localhost:$port $scan --save labels.npy
    $client infer --model centerpoint --address localhost:$port $scan --save boxes.json
    $client models minkunet --address localhost:$port
    $client --help
    $(near "$ROOT/deploy/install.sh") python     # the Python client, in build/venv:
    $(near "$BUILD/venv/bin/python") -m voxserve infer --model minkunet --address localhost:$port $scan
NEXT
