#!/usr/bin/env bash
# Called by tests/run.sh --tidy: formatting, clang-tidy, the scripts and the Python code. Files that git knows, or would.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/steps.sh"

cd "$ROOT"
files() { git ls-files --cached --others --exclude-standard -- "$@"; }
failures=()

step "1/5 What is missing"
deploy/install.sh build test tidy python
logged "$BUILD/logs/pip-check.log" "$BUILD/venv/bin/python" -m pip install --disable-pip-version-check --no-input \
  "$BUILD/python[check]" || die "pip could not install ruff and mypy"

step "2/5 Scripts (shellcheck)"
files '*.sh' .ci/run | xargs -r shellcheck -x || failures+=(shellcheck)

step "3/5 Python (ruff, mypy)"
(cd client/python && "$BUILD/venv/bin/ruff" check . && "$BUILD/venv/bin/mypy") || failures+=(python)

step "4/5 Formatting (clang-format)"
files '*.h' '*.cc' '*.cu' '*.cuh' | xargs -r clang-format-14 --dry-run --Werror || failures+=(clang-format)

step "5/5 clang-tidy (20 minutes on 2 cores)"
build_preset dev
files '*.cc' | xargs -r -n 1 -P "$(cores)" clang-tidy-14 --quiet -p "$BUILD/dev" 2>/dev/null || failures+=(clang-tidy)

step "Summary"
if ((${#failures[@]} > 0)); then die "not clean: ${failures[*]}"; fi
say "clean"
