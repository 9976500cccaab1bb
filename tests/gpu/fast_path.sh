#!/usr/bin/env bash
# Measures in one run how long convolutions take on a GPU in voxserve and in other libraries. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/steps.sh"
# shellcheck source=tests/gpu/carried_build.sh
source "$ROOT/tests/gpu/carried_build.sh"

usage() {
  cat <<'HELP'
tests/gpu/fast_path.sh [BUILD] [--out FOLDER] [--only STEP]... [--peers "NAME..."] [--filter TEXT] [--commit ID]

Makes the tables of networks and layers on a machine with an NVIDIA GPU. Each step ends within its limit and writes its
own file, STEP.md, beside STEP.log:

  accuracy  accuracy_bench: errors, labels and mIoU of the demo's network by precision             (60 s)
  networks  varied_inputs_cuda_bench networks: MinkUNet, and the models that voxserve.export writes with random
            weights: CenterPoint, SECOND, SPVCNN, MinkowskiEngine's MinkUNet; with and without determinism
            (30 s more than --seconds)
  captured  varied_inputs_cuda_bench networks --captured: MinkUNet with and without captured batches (120 s)
  int8      dataflow_cuda_bench int8, and varied_inputs_cuda_bench networks --captured --int8: MinkUNet on SemanticKITTI
            in float16 and in 8 bits, layer by layer and whole                                      (210 s)
  voxels    varied_inputs_cuda_bench voxels: time over 1,000 to 1,000,000 voxels, and voxels.svg   (90 s)
  layers    layer_profile.py: every convolution of MinkUNet 1.0x, with ncu                          (150 s)
  peers     peer_bench.py: spconv's and TorchSparse's MinkUNet 1.0x on the inputs of `networks`     (180 s each)

It builds nothing: BUILD (default build/dev) may come from another machine. Libraries that this machine lacks are taken
from BUILD/lib. Models need Python with NumPy, grpcio and protobuf; peers need torch. The report names what is missing.

  --out FOLDER        folder for all files (default: BUILD/gpu/fast_path); report.md in it contains all of them
  --only STEP         run only this step; may be given several times
  --peers "NAME..."   only these peers (default: those of spconv and torchsparse that Python finds)
  --filter TEXT       for `networks`: only cases whose name contains this text
  --seconds N         for `networks`: cases that would begin later are left out (default: 150)
  --commit ID         the built commit, if git cannot tell

Exit codes: 0 everything ran, 1 a step failed or ran out of time, 77 there is no GPU.
HELP
}

build=$BUILD/dev out='' commit='' filter='' peers='' seconds=150 steps=()
while (($# > 0)); do
  case $1 in
    --out | --only | --commit | --filter | --peers | --seconds)
      (($# > 1)) || die "$1 needs a value; see --help"
      case $1 in
        --out) out=$2 ;;
        --only) steps+=("$2") ;;
        --commit) commit=$2 ;;
        --filter) filter=$2 ;;
        --peers) peers=$2 ;;
        --seconds) seconds=$2 ;;
      esac
      shift
      ;;
    -h | --help) usage && exit ;;
    -*) die "unknown option $1; see --help" ;;
    *) build=$1 ;;
  esac
  shift
done
[[ $seconds =~ ^[1-9][0-9]{0,3}$ ]] || die "--seconds takes a whole number from 1 to 9999, not '$seconds'"
all=(accuracy networks captured int8 voxels layers peers)
((${#steps[@]} > 0)) || steps=("${all[@]}")
for name in "${steps[@]}"; do
  [[ " ${all[*]} " == *" $name "* ]] || die "--only takes one of ${all[*]}, not '$name'"
done

require_gpu
bench=$build/tests/bench
for program in accuracy_bench varied_inputs_cuda_bench dataflow_cuda_bench; do
  [[ -x $bench/$program ]] || die "$bench/$program is missing: build it, or name another folder"
done
build=$(realpath "$build") bench=$(realpath "$bench")
out=$(realpath -m "${out:-$build/gpu/fast_path}")
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# torch brings its own versions of the libraries below, so peers run with the caller's library path.
own_libraries=${LD_LIBRARY_PATH:-}
use_carried_build "$build"

num_failures=0
fail() { num_failures=$((num_failures + 1)); }

# measure NAME SECONDS COMMAND...: runs the command with a time limit. Its output goes to out/NAME.md, its errors to
# out/NAME.log.
measure() {
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  quiet "$name: $*"
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.md" 2>"$out/$name.log" </dev/null || status=$?
  if ((status == 0)); then return; fi
  fail
  if ((status == 124 || status == 137)); then
    printf '\n**%s TIMED OUT after %d s**\n' "$name" "$((SECONDS - begin))" >>"$out/$name.md"
  else
    # shellcheck disable=SC2016  # the backticks are Markdown
    printf '\n**%s FAILED with status %d:**\n\n```\n%s\n```\n' "$name" "$status" \
      "$(tail -n 5 "$out/$name.log")" >>"$out/$name.md"
  fi
}

# export_model NAME EXPORTER OPTIONS...: writes a model with random weights to $work/models/NAME.
export_model() {
  local name=$1
  shift
  PYTHONPATH=$ROOT/client/python/src${PYTHONPATH:+:$PYTHONPATH} python3 -m voxserve.export "$@" \
    --output "$work/models/$name" >>"$out/export.log" 2>&1
}

run_accuracy() { measure accuracy 60 "$bench/accuracy_bench"; }

run_networks() {
  local options=() missing=() name scan exporter
  rm -f "$out/export.log"
  while read -r name scan exporter; do
    # shellcheck disable=SC2086  # the words of $exporter are an exporter and its options
    if export_model "$name" $exporter; then
      options+=(--model "$work/models/$name" "$scan")
    else
      missing+=("$name")
    fi
  done <<'MODELS'
centerpoint-waymo waymo/frame_100 centerpoint --dataset waymo
centerpoint-nuscenes-0.075 nuscenes/10sweeps centerpoint --dataset nuscenes-0.075
centerpoint-nuscenes-0.1 nuscenes/10sweeps centerpoint --dataset nuscenes-0.1
centerpoint-pillar-waymo waymo/frame_100 centerpoint-pillar --dataset waymo
centerpoint-pillar-nuscenes nuscenes/10sweeps centerpoint-pillar --dataset nuscenes
voxelnext nuscenes/10sweeps voxelnext
second semantickitti-00/000000 second
pointpillars semantickitti-00/000000 pointpillars
spvcnn semantickitti-00/000000 spvcnn
minkowski-unet semantickitti-00/000000 minkowski-unet
minkowski-hypercross semantickitti-00/000000+t minkowski-unet --kernel hypercross --voxel-size 0.05,0.05,0.05,0.1
MODELS
  measure networks $((seconds + 30)) "$bench/varied_inputs_cuda_bench" networks --seconds "$seconds" \
    --filter "$filter" "${options[@]}"
  rm -rf "$work/models"
  if ((${#missing[@]} > 0)); then
    fail
    # shellcheck disable=SC2016  # the backticks are Markdown
    printf '\n**Not exported: %s**\n\n```\n%s\n```\n' "${missing[*]}" "$(tail -n 3 "$out/export.log")" \
      >>"$out/networks.md"
  fi
}

run_captured() {
  measure captured 120 "$bench/varied_inputs_cuda_bench" networks --captured --seconds 100 --filter "MinkUNet 1.0x"
}

run_int8() {
  measure int8-layers 90 "$bench/dataflow_cuda_bench" int8 1.0
  measure int8-networks 120 "$bench/varied_inputs_cuda_bench" networks --captured --int8 --seconds 100 \
    --filter "MinkUNet 1.0x, semantickitti"
  (cat "$out/int8-layers.md" && echo && cat "$out/int8-networks.md") >"$out/int8.md"
}

run_voxels() {
  measure voxels 90 "$bench/varied_inputs_cuda_bench" voxels --seconds 75
  python3 "$ROOT/tests/bench/plot_voxels.py" "$out/voxels.md" --out "$out/voxels.svg" 2>>"$out/voxels.log" || {
    fail
    printf '\n**No picture: %s**\n' "$(tail -n 1 "$out/voxels.log")" >>"$out/voxels.md"
  }
}

run_layers() {
  measure layers 150 python3 "$ROOT/tests/bench/layer_profile.py" "$bench/dataflow_cuda_bench" --logs "$out/layers"
}

run_peers() {
  local peer scans=()
  if [[ -z $peers ]]; then
    for peer in spconv torchsparse; do
      if python3 -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$peer') is None)"; then
        peers+="$peer "
      fi
    done
  fi
  if [[ -z $peers ]]; then
    printf '**No peer: Python finds neither spconv nor torchsparse.**\n' >"$out/peers.md"
    return
  fi
  measure inputs 60 "$bench/varied_inputs_cuda_bench" --save_points "$work/points" --filter "MinkUNet 1.0x"
  scans=("$work"/points/*)
  : >"$out/peers.md"
  for peer in $peers; do
    measure "peer-$peer" 180 env "LD_LIBRARY_PATH=$own_libraries" \
      python3 "$ROOT/tests/bench/peer_bench.py" "$peer" "${scans[@]}"
    printf '\n' | cat "$out/peer-$peer.md" - >>"$out/peers.md"
  done
}

[[ -n $commit ]] || commit=$(built_commit)
printf '# The fast path on %s\n\n%s, commit %s, %d cores.\n' "$gpu" "$(date -u '+%Y-%m-%d %H:%M UTC')" "$commit" \
  "$(cores)" >"$out/report.md"
for name in "${steps[@]}"; do
  step "$name"
  "run_$name"
  printf '\n## %s\n\n' "${name^}" | cat - "$out/$name.md" >>"$out/report.md"
  cat "$out/$name.md"
done
say "written to $out"
((num_failures == 0))
