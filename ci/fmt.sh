#!/usr/bin/env bash
# The sources are as rustfmt's defaults leave them.
. "$(dirname "$0")/lib.sh"

component rustfmt rustfmt
run cargo fmt --all --check
run cargo fmt --manifest-path fuzz/Cargo.toml --check
