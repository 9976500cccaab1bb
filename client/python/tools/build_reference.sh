#!/usr/bin/env bash
# Builds the API reference from the docstrings: HTML, in the folder OUT. Every warning is an error.
#
#   tools/build_reference.sh [OUT]        (default: build/reference of the repository)
#
# Needs Sphinx (pip install 'voxserve[docs]'), of the Python that PYTHON names; by default python3.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
out=${1:-$here/../../build/reference}
python=${PYTHON:-python3}
"$python" -c 'import sphinx' 2>/dev/null ||
  { echo "Sphinx is not installed: $python -m pip install sphinx" >&2; exit 1; }
mkdir -p "$out"
PYTHONPATH=$here/src${PYTHONPATH:+:$PYTHONPATH} \
  "$python" -m sphinx --fail-on-warning --keep-going --quiet -E -b html -d "$out/.doctrees" "$here/docs" "$out"
rm -rf "$out/.doctrees"
echo "$out/index.html"
