#!/usr/bin/env bash
# The documentation builds without a warning: no link that leads nowhere, in the public pages and in the private ones.
. "$(dirname "$0")/lib.sh"

export RUSTDOCFLAGS="-D warnings"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/check" # clippy has checked all that documentation needs
run cargo doc --workspace --exclude training --exclude schedules --exclude pinfeed-parquet --exclude pinfeed-python --exclude watch --exclude watch-attribute --no-deps --features "$(all_features)"
run cargo doc --workspace --exclude training --exclude schedules --exclude pinfeed-parquet --exclude pinfeed-python --exclude watch --exclude watch-attribute --no-deps --features "$(all_features)" --document-private-items
