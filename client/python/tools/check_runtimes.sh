#!/usr/bin/env bash
# Tries the package with old and new protobuf runtimes, and beside tritonclient's generated stubs: each in its own
# virtual environment under build/runtimes. "oldest" stands for the oldest releases of every requirement, whose wheels
# are for Python 3.10. Needs a package index. Usage: [PYTHON=python3.10] check_runtimes.sh [protobuf version|oldest|...]
set -euo pipefail
package=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
root=$package/../../build/runtimes
python=${PYTHON:-python3}
versions=("$@")
[[ $# -gt 0 ]] || versions=(3.20.3 4.21.12 4.25.8 5.29.5 6.33.0 7 tritonclient)
failed=0
# From a copy: setuptools writes into the folder that it builds.
mkdir -p "$root"
rm -rf "$root/package"
cp -R "$package" "$root/package"
for version in "${versions[@]}"; do
  venv=$root/$version
  rm -rf "$venv"
  "$python" -m venv "$venv"
  case $version in
    tritonclient) requirements=("tritonclient[grpc]") ;;
    oldest) requirements=(protobuf==3.20.2 grpcio==1.48.0 numpy==1.22.0 pytest==7.0.0) ;;
    *.*.*) requirements=("protobuf==$version") ;;
    *) requirements=("protobuf==$version.*") ;;
  esac
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${requirements[@]}" "$root/package[test]"
  protobuf=$("$venv/bin/python" -c 'import google.protobuf as p; print(p.__version__)')
  result=passed
  if [[ $version == tritonclient ]]; then
    for order in "import tritonclient.grpc, voxserve" "import voxserve, tritonclient.grpc"; do
      "$venv/bin/python" -c "$order; voxserve.wire.InferRequest(model='m').SerializeToString()" || result=FAILED
    done
  fi
  "$venv/bin/python" -m pytest -q --rootdir "$package" "$package"/tests \
    >"$venv/pytest.log" 2>&1 || result=FAILED
  [[ $result == passed ]] || { failed=1; tail -n 20 "$venv/pytest.log"; }
  printf '%-14s protobuf %-10s %s (%s)\n' "$version" "$protobuf" "$result" "$(tail -n 1 "$venv/pytest.log")"
done
exit "$failed"
