#!/usr/bin/env bash
# Every test, and the long forms of those that tests/run.sh runs in short: attacks together, the soak, faults by the
# dozen, whole networks in NumPy. Takes the options of tests/run.sh. Run it before a release.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/steps.sh"
# The image is built file by file, and the tests are not: a file that lacks an include fails here.
"$ROOT/deploy/install.sh" build test
build_preset single
VOXSERVE_LONG=1 exec "$(dirname "${BASH_SOURCE[0]}")/run.sh" "$@"
