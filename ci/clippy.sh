#!/usr/bin/env bash
# No lint of the compiler or of clippy has anything to say: of the library, tests, examples and benches, with the
# default features, with all that build without CUDA's compiler, and with none.
. "$(dirname "$0")/lib.sh"

component clippy cargo-clippy
run cargo clippy --workspace --all-targets -- -D warnings
run cargo clippy --workspace --all-targets --features "$(all_features)" -- -D warnings
run cargo clippy --workspace --all-targets --no-default-features -- -D warnings
