#!/usr/bin/env bash
# What measures the library compiles, and has no lint: its own bench, and the packages beside it that are none of the
# workspace's (benches/pieces, benches/peers). The Python scripts compile. Nothing is measured.
. "$(dirname "$0")/lib.sh"

component clippy cargo-clippy
# One folder for all: much of what they depend on is the same.
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR

# Whether a package's dependencies are here, or could be fetched.
fetched() {
    cargo fetch --quiet --manifest-path "$1/Cargo.toml" && return
    skip "$1: what it depends on could not be fetched"
    return 1
}

# Whether the toolchain is as new as a package wants.
new_enough() {
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$1/Cargo.toml")
    have=$(rustc --version | cut -d' ' -f2)
    [[ $(printf '%s\n' "$wanted" "$have" | sort -V | head -n1) == "$wanted" ]] && return
    skip "$1: it needs Rust $wanted, and this is $have"
    return 1
}

if command -v python3 >/dev/null; then
    PYTHONPYCACHEPREFIX=$(mktemp -d)
    export PYTHONPYCACHEPREFIX
    trap 'rm -rf "$PYTHONPYCACHEPREFIX"' EXIT
    run python3 -m py_compile benches/plot.py benches/peers/*.py benches/peers/*/*.py
else
    skip "the Python scripts: there is no python3"
fi

run cargo bench --no-run --bench "*"

package=benches/pieces
if fetched $package; then
    run cargo clippy --manifest-path $package/Cargo.toml --all-targets -- -D warnings
    run cargo bench --no-run --manifest-path $package/Cargo.toml
fi

package=benches/peers/dataloader-rs
if new_enough $package && fetched $package; then
    run cargo clippy --locked --manifest-path $package/Cargo.toml --all-targets -- -D warnings
    run cargo build --locked --release --manifest-path $package/Cargo.toml
fi

package=benches/peers/beside
if fetched $package; then
    run cargo clippy --no-default-features --manifest-path $package/Cargo.toml -- -D warnings
fi
