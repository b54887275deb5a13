#!/usr/bin/env bash
# The library and the derive macro compile with the Rust that Cargo.toml promises. Tests may need a newer one.
. "$(dirname "$0")/lib.sh"

version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
[[ $version == *.*.* ]] || version+=".0"
if ! run alone rustup toolchain install "$version" --profile minimal --no-self-update; then
    skip_all "Rust $version could not be installed"
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/check"
check() { run cargo "+$version" check --locked --lib "$@"; }
check --package pinfeed
check --package pinfeed --no-default-features
check --package pinfeed --features arrays,ndarray,nvtx,object-store,serde,testing,tokio,tracing,webdataset
check --package pinfeed-derive
note "Rust $version"
