#!/usr/bin/env bash
# Compares the binary interface of libvoxserve_client.so of two commits. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

usage() {
  cat <<'HELP'
deploy/abidiff.sh [OLD [NEW]]    compare two commits' libvoxserve_client.so by abidiff (default: HEAD~1 HEAD)

Builds both with debug information under build/abidiff, and compares what the public headers declare. Exits with 0 if a
program that was linked with OLD runs with NEW: nothing changed, or functions were added. Exits with 1 otherwise, after
abidiff's report: then the SONAME's number, the inline namespace and symbols.map must change, or the change must go.

Needs abigail-tools (apt-get install abigail-tools) and what builds the client (client/cpp/README.md).
HELP
}

case ${1:-} in -h | --help) usage && exit ;; -*) die "unknown option $1" "deploy/abidiff.sh --help lists the options" ;; esac
command -v abidiff >/dev/null || die "abidiff is missing" "apt-get install abigail-tools"

build() {  # NAME COMMIT
  local name=$1 commit dir=$BUILD/abidiff/$1
  commit=$(git -C "$ROOT" rev-parse --verify --quiet "$2^{commit}") || die "$2 is no commit"
  step "Building $name: $(git -C "$ROOT" log -1 --format='%h %s' "$commit")"
  rm -rf "$dir/source"
  mkdir -p "$dir/source"
  git -C "$ROOT" archive "$commit" | tar -x -C "$dir/source"
  [[ -f $dir/source/client/cpp/voxserve/symbols.map ]] || die "$2 has no libvoxserve_client.so yet"
  local options=(-DVOXSERVE_CLIENT_ONLY=ON -DVOXSERVE_BUILD_CLI=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_UNITY_BUILD=ON)
  if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  # Two commits compile alike, below a root of their own.
  CCACHE_BASEDIR=$dir/source logged "$BUILD/logs/abidiff-$name.log" \
    cmake -S "$dir/source" -B "$dir/source/build" -G Ninja "${options[@]}" || die "configuring $name failed"
  CCACHE_BASEDIR=$dir/source logged "$BUILD/logs/abidiff-$name.log" \
    cmake --build "$dir/source/build" --target voxserve_client --parallel "$(cores)" || die "building $name failed"
}

library() { printf '%s' "$BUILD/abidiff/$1/source/build/client/cpp/libvoxserve_client.so"; }

build old "${1:-HEAD~1}"
build new "${2:-HEAD}"
step "Comparing"
# abidiff calls a changed struct "possibly compatible". Here nothing may change but that functions are added.
status=0
abidiff --no-added-syms --headers-dir1 "$BUILD/abidiff/old/source/client/cpp/voxserve" \
  --headers-dir2 "$BUILD/abidiff/new/source/client/cpp/voxserve" "$(library old)" "$(library new)" || status=$?
if ((status & 3)); then die "abidiff failed ($status)"; fi
if ((status)); then die "the new library may break programs that were linked with the old one"; fi
symbols() { nm -D --defined-only "$(library "$1")" | awk '{ print $3 }' | sort; }
say "Programs of the old library run with the new one; $(comm -13 <(symbols old) <(symbols new) | wc -l) functions are new."
