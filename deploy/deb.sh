#!/usr/bin/env bash
# Builds Debian packages of voxserve. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

usage() {
  cat <<'HELP'
deploy/deb.sh [--client-only | --cuda] [FOLDER]    write the packages to FOLDER (default: build/packages)

voxserve-server      voxserve, voxserve-tune, voxserve-calibrate, and the demonstration's models and scan in /usr/share/voxserve
voxserve-client      libvoxserve_client.so.0 and voxserve-client
voxserve-client-dev  headers, CMake package (voxserve::client) and voxserve.pc

The packages are for the distribution that they are built on, whose libraries they depend on: build for Debian 12 on
Debian 12, for Ubuntu 24.04 there. --client-only builds the last two: no CUDA, oneDNN or prometheus is needed.

The server is built for the CPU. --cuda builds it for GPUs as well. This needs the CUDA toolkit 13.0 and cuBLAS from
NVIDIA's apt repository (cuda-toolkit-13-0, libcublas-13-0, libcublas-dev-13-0): dpkg then knows which package owns
libcublas.so.13, and the server's package depends on it. cuBLAS from PyPI, as deploy/install.sh fetches it, has no
package, so that the script refuses it.
HELP
}

cuda=OFF kind=server folder=$BUILD/packages
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --cuda) cuda=ON ;;
    --client-only) kind=client ;;
    -*) die "unknown option $1" "deploy/deb.sh --help lists the options" ;;
    *) folder=$1 ;;
  esac
  shift
done
[[ $kind == server || $cuda == OFF ]] || die "the client needs no CUDA: choose --cuda or --client-only"
command -v dpkg-shlibdeps >/dev/null || die "dpkg-shlibdeps is missing" "apt-get install dpkg-dev"
if [[ $cuda == ON ]]; then
  library=$(find /usr/local/cuda/ -name 'libcublas.so.13' -print -quit 2>/dev/null || true)
  if [[ -z $library ]] || ! dpkg-query -S "$(realpath "$library")" >/dev/null 2>&1; then
    die "no package owns libcublas.so.13" "apt-get install libcublas-13-0 libcublas-dev-13-0 from NVIDIA's repository"
  fi
fi

dir=$BUILD/deb-$kind
[[ $cuda == OFF ]] || dir+=-cuda
options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DCMAKE_INSTALL_PREFIX=/usr -DVOXSERVE_BUILD_TESTS=OFF
  "-DVOXSERVE_CUDA=$cuda")
[[ $kind == server ]] || options+=(-DVOXSERVE_CLIENT_ONLY=ON)
if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache); fi
step "Building the $kind (log: $BUILD/logs/deb-$kind.log)"
logged "$BUILD/logs/deb-$kind.log" cmake -S "$ROOT" -B "$dir" -G Ninja "${options[@]}" || die "configuring failed"
logged "$BUILD/logs/deb-$kind.log" cmake --build "$dir" --parallel "$(cores)" || die "the build failed"
step "Packing"
mkdir -p "$folder"
logged "$BUILD/logs/deb-$kind-cpack.log" cpack --config "$dir/CPackConfig.cmake" -B "$dir/packages" ||
  die "packing failed"
version=$(<"$ROOT/client/python/VERSION")
for package in "$dir"/packages/voxserve-*_"$version"_*.deb; do
  cp "$package" "$folder/"
  say "$folder/$(basename "$package") ($(du -k "$package" | cut -f1) KB)"
done
