#!/usr/bin/env bash
# What would be published builds by itself: both crates are packed, unpacked and built, the library against the derive
# macro as it was packed (Cargo stands in for the registry). pinfeed-parquet is packed by ci/parquet.sh, and pinfeed-python is a wheel: ci/python.sh.
. "$(dirname "$0")/lib.sh"

# Not in a folder of their own: the tests have built what both crates need.
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR
run cargo package --workspace --exclude probe --exclude training --exclude pinfeed-parquet --exclude pinfeed-python --exclude schedules --exclude watch --exclude watch-attribute --allow-dirty
