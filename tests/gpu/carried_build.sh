# The scripts of this folder source this file after deploy/steps.sh. Its functions help to run a build that was copied
# to a machine with a GPU.
# shellcheck shell=bash

# use_carried_build BUILD: exports where the scans, models and missing libraries are on this machine. A copied build
# knows only the folders of the machine that built it.
use_carried_build() {
  local build=$1 libraries=${LD_LIBRARY_PATH:-} folder
  export VOXSERVE_SOURCE_DIR=$ROOT VOXSERVE_BINARY_DIR=$build
  if [[ -z ${VOXSERVE_SHARED_DATA:-} ]]; then
    VOXSERVE_SHARED_DATA=$ROOT/../shared/data
    [[ -d $VOXSERVE_SHARED_DATA ]] || VOXSERVE_SHARED_DATA=$ROOT/shared/data
    export VOXSERVE_SHARED_DATA
  fi
  for folder in "$build/lib" "$CUBLAS/nvidia/cu13/lib" /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64; do
    if [[ -d $folder ]]; then libraries+=${libraries:+:}$folder; fi
  done
  export LD_LIBRARY_PATH=$libraries
}

# built_commit: prints the commit of this checkout, followed by " and changes" if files differ from it.
built_commit() {
  local commit
  commit=$(git -C "$ROOT" rev-parse --short HEAD 2>/dev/null || echo unknown)
  [[ -z $(git -C "$ROOT" status --porcelain 2>/dev/null) ]] || commit+=' and changes'
  echo "$commit"
}

# require_gpu: sets `gpu` to the name of the first GPU, or ends the script with status 77 if there is none.
require_gpu() {
  gpu=$(gpus | head -n 1)
  if [[ -z $gpu ]]; then
    warn "There is no NVIDIA GPU on this machine: nothing was run."
    exit 77
  fi
}
