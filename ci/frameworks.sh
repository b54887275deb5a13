#!/usr/bin/env bash
# The programs of frameworks/, a workspace of its own: types and clippy. tch is checked without libtorch; cutile's bindings are made from the headers of
# CUDA's toolkit, by libclang. Neither is run here: docs/frameworks.md says what was.
. "$(dirname "$0")/lib.sh"

manifest=frameworks/Cargo.toml
wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' $manifest)
have=$(rustc --version | cut -d' ' -f2)
if [[ $(printf '%s\n' "$wanted" "$have" | sort -V | head -n1) != "$wanted" ]]; then
    skip_all "cutile needs Rust $wanted, and this is $have"
fi
cargo fetch --locked --quiet --manifest-path $manifest || skip_all "the frameworks could not be fetched"

component clippy cargo-clippy
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}/frameworks")
export CARGO_TARGET_DIR
run cargo clippy --locked --manifest-path $manifest --features tch-types --example tch -- -D warnings

tools=$CARGO_TARGET_DIR/tools
if [[ ! -e $tools/ready ]]; then
    run python3 -m pip install --quiet --no-deps --upgrade --target "$tools" nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 \
        nvidia-curand==10.4.5.25 libclang==18.1.1 || {
        skip "cutile: the headers of CUDA's toolkit could not be installed"
        exit 0
    }
    touch "$tools/ready"
fi
# (The wheel of libclang is without the compiler's own headers.)
own=$(cc -print-file-name=include)
export CUDA_HOME=$tools/nvidia/cu13 LIBCLANG_PATH=$tools/clang/native BINDGEN_EXTRA_CLANG_ARGS="-I$own"
run cargo clippy --locked --manifest-path $manifest --features cutile --example cutile -- -D warnings
