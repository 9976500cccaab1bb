#!/usr/bin/env bash
# Runs for tests/run.sh --tidy: formatting, clang-tidy, the scripts and the Python code. Checks the files that git knows
# and the new ones that it does not ignore. The argument says on which files clang-tidy runs: "changed" or "all".
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/steps.sh"

cd "$ROOT"
files() { git ls-files --cached --others --exclude-standard -- "$@"; }

# The C++ files that differ from the branch main, or on main from the commit before. clang-tidy reads a header through a
# source: the one of its name, else one that includes it.
changed_sources() {
  local base file source
  base=$(git merge-base HEAD main 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null) || base=''
  if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then base=$(git rev-parse HEAD~1); fi
  { git diff --name-only --diff-filter=d "$base" -- '*.cc' '*.h' && git ls-files --others --exclude-standard -- '*.cc' '*.h'; } |
    while read -r file; do
      source=${file%.*}.cc
      if [[ ! -f $source ]]; then source=$(git grep -lF "#include \"$file\"" -- '*.cc' | head -n 1) || source=''; fi
      if [[ -n $source ]]; then echo "$source"; fi
    done | sort -u
}

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

if [[ $1 == all ]]; then
  mapfile -t sources < <(files '*.cc')
else
  mapfile -t sources < <(changed_sources)
fi
step "5/5 clang-tidy on ${#sources[@]} files (10 s each)"
build_preset single voxserve_model_proto voxserve_api_proto
if ((${#sources[@]} > 0)); then
  printf '%s\0' "${sources[@]}" |
    xargs -0 -n 1 -P "$(cores)" clang-tidy-14 --quiet -p "$BUILD/single" 2>/dev/null || failures+=(clang-tidy)
fi

step "Summary"
if ((${#failures[@]} > 0)); then die "not clean: ${failures[*]}"; fi
say "clean"
