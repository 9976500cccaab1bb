# Sourced by the scripts of this folder, after deploy/steps.sh: a build that was carried to a machine with a GPU.
# shellcheck shell=bash

# use_carried_build BUILD: tells its programs where scans and models lie here, which may be in other folders than those
# that they were built with, and where to find the libraries that this machine lacks.
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
