#!/usr/bin/env bash
# deny.toml: licences, bans and sources. With cargo-deny where it is installed; else a part of it by the script below.
. "$(dirname "$0")/lib.sh"

if command -v cargo-deny >/dev/null; then
    run cargo deny --features "$(all_features)" check bans licenses sources
    exit
fi
note "cargo-deny is not installed: licences, banned crates and cudarc's features are checked without it"
python3 -c 'import tomllib' 2>/dev/null || skip_all "the check needs Python 3.11"
step "ci/deny.py"
cargo metadata --format-version 1 --features "$(all_features)" | python3 ci/deny.py
