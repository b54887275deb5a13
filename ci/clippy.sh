#!/usr/bin/env bash
# Neither the compiler nor clippy has a complaint about the library, its tests, examples and benches, and the packages of examples/, with all features
# that build without CUDA's compiler. (The job `features` looks at the default ones, at none and at combinations. That examples/training
# names the features that it needs, `readme` shows, which builds it alone; pinfeed-parquet and pinfeed-python have jobs of their own.)
. "$(dirname "$0")/lib.sh"

component clippy cargo-clippy
# A folder of its own, so that it can be checked beside the tests.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/check"
run cargo clippy --workspace --exclude schedules --exclude pinfeed-parquet --exclude pinfeed-python --all-targets --features "$(all_features)" -- -D warnings
