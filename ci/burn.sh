#!/usr/bin/env bash
# The package pinfeed-burn, a workspace of its own (burn wants a newer Rust than the library): clippy, its documentation, its tests and
# programs on burn's CPU backends, its examples, which train on a CPU; and that its types fit burn's CUDA backend.
. "$(dirname "$0")/lib.sh"

manifest=burn/Cargo.toml
wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' $manifest)
have=$(rustc --version | cut -d' ' -f2)
if [[ $(printf '%s\n' "$wanted" "$have" | sort -V | head -n1) != "$wanted" ]]; then
    skip_all "burn needs Rust $wanted, and this is $have"
fi
cargo fetch --locked --quiet --manifest-path $manifest || skip_all "burn could not be fetched"

component clippy cargo-clippy
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}/burn")
export CARGO_TARGET_DIR
run cargo clippy --locked --manifest-path $manifest --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" run cargo doc --locked --manifest-path $manifest --no-deps --document-private-items
run cargo test --locked --manifest-path $manifest
run cargo run --locked --manifest-path $manifest --example digits
run cargo run --locked --manifest-path $manifest --example resnet18 -- --size 32 --batches 2 --batch-sizes 4 --workers 1
# (cubecl downloads LLVM when its CUDA runtime is built, unless that is for documentation: types are checked, and nothing is linked.)
DOCS_RS=1 run cargo check --locked --manifest-path $manifest --features cuda --examples
