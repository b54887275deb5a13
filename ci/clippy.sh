#!/usr/bin/env bash
# Neither the compiler nor clippy has a complaint about the library: with the default features, with all that build without CUDA's
# compiler, and with none; about its tests, examples and benches, with all features; and about the package of examples/training, which
# is checked alone: together with the library, it would turn the feature candle on there. (ci/features.sh checks the tests with others.)
. "$(dirname "$0")/lib.sh"

component clippy cargo-clippy
# A folder of its own, so that it can be checked beside the tests.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/check"
library=(--workspace --exclude training --exclude schedules)
run cargo clippy "${library[@]}" --all-targets --features "$(all_features)" -- -D warnings
run cargo clippy --lib -- -D warnings
run cargo clippy --lib --no-default-features -- -D warnings
run cargo clippy --package training --all-targets -- -D warnings
