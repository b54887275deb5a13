#!/usr/bin/env bash
# The README's command. Tests on a GPU are counted as ignored where there is none; PINFEED_REQUIRE_CUDA=1 makes that a
# failure.
. "$(dirname "$0")/lib.sh"

if ! command -v cc >/dev/null && ! command -v gcc >/dev/null && ! command -v clang >/dev/null; then
    note "there is no C compiler, and tests/drivers.rs will fail for it"
fi
export PINFEED_SEED="${PINFEED_SEED:-30}" # of the hostile device's tests
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run cargo test 2>&1 | tee "$log"
if grep -A5 "^warning" "$log"; then
    echo "with the default features, the compiler has warnings"
    exit 1
fi
if grep "panicked at" "$log"; then
    echo "these panics are no failures, and look like some: what a test provokes is watch::provoked"
    exit 1
fi
