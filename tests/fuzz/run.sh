#!/usr/bin/env bash
# Runs for tests/run.sh --fuzz: builds the fuzzers and runs each for this many seconds, one per core. New inputs that reach
# more code go to build/fuzz/corpus/NAME. Exits with 1 where a fuzzer found something.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/steps.sh"

seconds=$1
out=$BUILD/fuzz

step "1/3 What is missing"
"$ROOT/deploy/install.sh" build test clang

step "2/3 Build the preset 'fuzz' (10 minutes the first time on 2 cores)"
build_preset fuzz fuzzers

step "3/3 Each fuzzer for $seconds seconds"
"$ROOT/tests/fuzz/fuzz_all.sh" "$out/tests/fuzz" "$ROOT/tests/fuzz/corpus" "$seconds" "$out" "$(cores)"
