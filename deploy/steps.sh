# Sourced by deploy/install.sh, deploy/demo.sh and tests/run.sh: common messages, cache folders and build steps. Needs
# bash. Sets ROOT (the repository), BUILD (all build results) and CACHE (files that outlive the build).
# shellcheck shell=bash
set -euo pipefail

# The path is that of the file itself: if it is reached through a link, the build must not get another path.
ROOT=$(cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.." && pwd -P)
BUILD=$ROOT/build
export ROOT BUILD

# The cache is in the user's home if that can be written, else beside the build.
CACHE=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
if [[ $CACHE != /* ]] || ! mkdir -p "$CACHE/voxserve" 2>/dev/null || [[ ! -w $CACHE/voxserve ]]; then
  CACHE=$BUILD/cache
fi
CACHE=${CACHE%/}
export CCACHE_DIR=${CCACHE_DIR:-$CACHE/ccache} PIP_CACHE_DIR=${PIP_CACHE_DIR:-$CACHE/pip}
# ccache also finds compiled files again from another checkout.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
# The presets dev and native differ in this alone, and so share what they compiled. (A warning of "native" is then a
# warning of "dev" too; in continuous integration "dev" comes first.)
export CCACHE_IGNOREOPTIONS=-Werror

if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
  bold=$'\e[1m' red=$'\e[1;31m' yellow=$'\e[1;33m' dim=$'\e[2m' plain=$'\e[0m'
else
  bold='' red='' yellow='' dim='' plain=''
fi

step() { printf '\n%s==> %s%s\n' "$bold" "$*" "$plain"; }
say() { printf '    %s\n' "$*"; }
quiet() { printf '%s    %s%s\n' "$dim" "$*" "$plain"; }
warn() { printf '%s    %s%s\n' "$yellow" "$*" "$plain" >&2; }
die() {
  printf '%serror: %s%s\n' "$red" "$1" "$plain" >&2
  shift
  (($# == 0)) || printf '       %s\n' "$@" >&2
  exit 1
}

# logged LOG COMMAND...: writes the command's output to the file LOG; shows its end if the command fails.
logged() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    printf '%s--- the end of %s ---%s\n' "$dim" "$log" "$plain" >&2
    tail -n 40 "$log" >&2
    return 1
  fi
}

cores() { nproc 2>/dev/null || echo 2; }

# convert_spconv_outputs PYTHON BUILD: converts spconv's published outputs to the NPZ files that the C++ tests read, if
# the shared data contain them.
convert_spconv_outputs() {
  [[ ! -d $VOXSERVE_SHARED_DATA/spconv ]] ||
    "$1" "$ROOT/tests/oracles/torch_to_npz.py" "$VOXSERVE_SHARED_DATA/spconv" "$2/spconv"
}

# Prints the name of every GPU, one per line. Prints nothing if there is no GPU.
gpus() {
  local names
  # nvidia-smi writes some of its errors where the names would stand.
  if names=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) && [[ $names != 'No devices'* ]]; then
    printf '%s\n' "$names"
    return
  fi
  sed -n 's/^Model:[[:space:]]*//p' /proc/driver/nvidia/gpus/*/information 2>/dev/null || true
}

# Prints the path of nvcc, the CUDA compiler. Looks where kernels/cuda.cmake looks: in PATH, then in
# /usr/local/cuda/bin. Prints nothing if there is no nvcc.
cuda_compiler() {
  command -v nvcc || { [[ -x /usr/local/cuda/bin/nvcc ]] && echo /usr/local/cuda/bin/nvcc; } || true
}

# Prints the compute capabilities of this machine's GPUs as CMake names them ("86-real;90a-real"), with "a" for Hopper's
# own instructions. Prints none that nvcc does not know, and nothing if nvidia-smi is missing or too old to tell them.
gpu_architectures() {
  local nvcc
  nvcc=$(cuda_compiler)
  [[ -n $nvcc ]] || return 0
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | sort -nu |
    grep -Fxf <("$nvcc" --list-gpu-arch | sed 's/^compute_//') | sed 's/^90$/90a/; s/$/-real/' | paste -sd ';' || true
}

# Tells CMake's preset "native" for which GPUs to build. CMake takes its own list where CUDAARCHS is empty.
use_own_gpus() {
  export VOXSERVE_CUDA=OFF CUDAARCHS=''
  [[ -z $(gpus) ]] || VOXSERVE_CUDA=AUTO CUDAARCHS=$(gpu_architectures)
}

# A CUDA toolkit can come without cuBLAS. deploy/install.sh then installs NVIDIA's package into the folder CUBLAS.
CUBLAS_VERSION=13.0.2.14
CUBLAS=$CACHE/voxserve/cublas-$CUBLAS_VERSION

toolkit_lacks_cublas() {
  local nvcc
  nvcc=$(cuda_compiler)
  [[ -n $nvcc ]] && ! "$nvcc" -E -x cu -include cublas_v2.h /dev/null >/dev/null 2>&1
}

# Succeeds if cuBLAS has to be fetched: the build is not for the CPU alone, and has no cuBLAS yet.
wants_cublas() {
  [[ ${VOXSERVE_CUDA:-} != OFF && -z ${VOXSERVE_CUBLAS_ROOT:-} && ! -d $CUBLAS ]] && toolkit_lacks_cublas
}

# Tells CMake's presets where the fetched package is.
use_fetched_cublas() {
  if [[ -z ${VOXSERVE_CUBLAS_ROOT:-} && -d $CUBLAS/nvidia/cu13 ]] && toolkit_lacks_cublas; then
    export VOXSERVE_CUBLAS_ROOT=$CUBLAS/nvidia/cu13
  fi
}

# ThreadSanitizer only sees the locks of an Abseil that was compiled with it. deploy/install.sh tsan builds the shared
# libraries of the installed version here.
tsan_abseil() {
  local version
  version=$(dpkg-query -W -f='${source:Version}' libabsl-dev 2>/dev/null) || version=none
  echo "$CACHE/voxserve/abseil-tsan-shared-${version//:/-}"
}

# Warns loudly if a GPU will not be used.
note_gpu() {
  local found
  found=$(gpus | sort | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /' | paste -sd, -)
  [[ -n $found ]] || return 0
  if [[ -n $(cuda_compiler) ]]; then
    say "GPU found ($found): voxserve uses it"
    return
  fi
  warn "************************************************************************"
  warn "GPU found ($found), but no nvcc: voxserve is built for the CPU and"
  warn "runs on the CPU. Building for a GPU needs the CUDA toolkit 13.0 or"
  warn "newer (package cuda-toolkit-13-0 of NVIDIA's repository)."
  warn "************************************************************************"
}

# lacks_nanobind FOLDER: succeeds if the build was configured before the virtual environment had nanobind, so that it has
# no voxserve.Engine, whose tests would be skipped.
lacks_nanobind() {
  grep -q '^nanobind_DIR:.*-NOTFOUND$' "$1/CMakeCache.txt" 2>/dev/null &&
    "$BUILD/venv/bin/python" -c 'import nanobind' 2>/dev/null
}

# build_preset PRESET [TARGETS...]: configures if that was not done for this machine, builds what changed, shows
# progress.
build_preset() {
  local preset=$1 dir=$BUILD/$1 log=$BUILD/logs/build-$1.log cmake=cmake
  shift
  mkdir -p "$BUILD/logs"
  # An older CMake may come first in the user's PATH; presets need 3.25.
  cmake_reads_presets "$cmake" || cmake=/usr/bin/cmake
  cmake_reads_presets "$cmake" || die "CMake 3.25 or newer is needed, found: $(cmake --version 2>&1 | head -n 1)"
  use_fetched_cublas
  # "NAME=VALUE" as CMake must have cached it
  local cached=("VOXSERVE_CUBLAS_ROOT=${VOXSERVE_CUBLAS_ROOT:-}") entry entries configured=true
  case $preset in
    native)
      use_own_gpus
      cached+=("VOXSERVE_CUDA=$VOXSERVE_CUDA" ${CUDAARCHS:+"CMAKE_CUDA_ARCHITECTURES=$CUDAARCHS"})
      ;;
    wheel-cuda) cached+=("CMAKE_CUDA_ARCHITECTURES=${CUDAARCHS:-}") ;;
    tsan)
      export VOXSERVE_ABSEIL_ROOT=${VOXSERVE_ABSEIL_ROOT:-$(tsan_abseil)}
      cached+=("VOXSERVE_ABSEIL_ROOT=$VOXSERVE_ABSEIL_ROOT")
      ;;
  esac
  entries=$(sed 's/:[A-Z]*=/=/' "$dir/CMakeCache.txt" 2>/dev/null) || configured=false
  for entry in "${cached[@]}"; do
    # Not by a pipe: grep -q leaves early, and its writer would fail then.
    grep -Fxq -- "$entry" <<<"$entries" || configured=false
  done
  if ! $configured || [[ ! -f $dir/build.ninja ]] || lacks_nanobind "$dir" ||
    { [[ -n $(cuda_compiler) ]] && grep -q '^VOXSERVE_NVCC:.*-NOTFOUND$' "$dir/CMakeCache.txt"; }; then
    quiet "configuring: $cmake --preset $preset (10 s)"
    (cd "$ROOT" && logged "$BUILD/logs/configure-$preset.log" "$cmake" --preset "$preset") ||
      die "CMake could not configure the preset '$preset'"
  fi
  if [[ -t 1 ]]; then
    (cd "$ROOT" && NINJA_STATUS='    [%f/%t, %es] ' ninja -C "$dir" "$@") || die "the build failed"
  else
    # Without a terminal it prints a line for each quarter, and the compiler's whole output on failure.
    (cd "$ROOT" && NINJA_STATUS='[%f/%t, %es] ' ninja -C "$dir" "$@" 2>&1) | tee "$log" |
      awk -F'[][/,]' '/^\[[0-9]+\/[0-9]+/ { quarter = int(4 * $2 / $3)
                                            if (quarter > last) { print "    " $0; fflush(); last = quarter } }' || {
      grep -vE '^\[[0-9]+/[0-9]+' "$log" | tail -n 60 >&2
      die "the build failed; all of its output: $log"
    }
  fi
}

cmake_reads_presets() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n '1s/.* //p')
  [[ -n $version && $(printf '%s\n3.25\n' "$version" | sort -V | head -n 1) == 3.25 ]]
}
