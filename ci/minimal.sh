#!/usr/bin/env bash
# The lower bounds in Cargo.toml hold: the library compiles with the oldest version of each direct dependency that they
# allow. What no user builds is left out: development dependencies and shuttle. candle and turbojpeg are resolved, not compiled.
. "$(dirname "$0")/lib.sh"

install_nightly || skip_all "the toolchain $nightly could not be installed"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}/check")
export CARGO_TARGET_DIR
git ls-files -z | xargs -0 cp --parents -t "$copy"
cd "$copy"
rm -r Cargo.lock examples/probe examples/training tests/shuttle
sed -i '/^\[dev-dependencies\]/,/^$/d; /^\[target.*shuttle/,/^$/d; /^shuttle = /d; s/^members = .*/members = ["derive"]/' Cargo.toml
run cargo "+$nightly" update -Z direct-minimal-versions
run cargo check --locked --lib --no-default-features
run cargo check --locked --lib --features arrays,ndarray,nvtx,object-store,rand_core,serde,testing,tokio,tracing,webdataset
