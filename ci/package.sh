#!/usr/bin/env bash
# What would be published builds by itself: both crates are packed, unpacked and built, the library against the derive
# macro as it was packed (Cargo stands in for the registry).
. "$(dirname "$0")/lib.sh"

run cargo package --workspace --exclude training --exclude schedules --exclude watch --exclude watch-attribute --allow-dirty
