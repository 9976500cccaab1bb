#!/usr/bin/env bash
# Tries the package with old and new protobuf runtimes, and beside tritonclient's generated stubs: each in its own
# virtual environment under build/runtimes. Needs a package index. Usage: check_runtimes.sh [protobuf versions...]
set -euo pipefail
package=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
root=$package/../../build/runtimes
python=${PYTHON:-python3}
versions=("$@")
[[ $# -gt 0 ]] || versions=(3.20.3 4.21.12 4.25.8 5.29.5 6.33.0 7 tritonclient)
failed=0
for version in "${versions[@]}"; do
  venv=$root/$version
  rm -rf "$venv"
  "$python" -m venv "$venv"
  if [[ $version == tritonclient ]]; then
    requirements=("tritonclient[grpc]")
  else
    requirements=("protobuf==$version.*")
    [[ $version == *.*.* ]] && requirements=("protobuf==$version")
  fi
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${requirements[@]}" grpcio numpy pytest "$package"
  protobuf=$("$venv/bin/python" -c 'import google.protobuf as p; print(p.__version__)')
  result=passed
  if [[ $version == tritonclient ]]; then
    for order in "import tritonclient.grpc, voxserve" "import voxserve, tritonclient.grpc"; do
      "$venv/bin/python" -c "$order; voxserve.wire.InferRequest(model='m').SerializeToString()" || result=FAILED
    done
  fi
  "$venv/bin/python" -m pytest -q --rootdir "$package" "$package"/tests/test_{wire,client,point_cloud}.py \
    >"$venv/pytest.log" 2>&1 || result=FAILED
  [[ $result == passed ]] || { failed=1; tail -n 20 "$venv/pytest.log"; }
  printf '%-14s protobuf %-10s %s (%s)\n' "$version" "$protobuf" "$result" "$(tail -n 1 "$venv/pytest.log")"
done
exit "$failed"
