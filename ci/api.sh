#!/usr/bin/env bash
# docs/api.txt lists the public items of the library, with the traits that their types have (`Send` and `Sync` too): a
# change of it shows in review what a program notices. A line that goes breaks programs.
#
#     ci/api.sh --write       makes the list anew
#
# The feature turbojpeg is left out, which adds no item, and candle-cuda, which takes CUDA's compiler to build.
. "$(dirname "$0")/lib.sh"

install_nightly || skip_all "the toolchain $nightly could not be installed"
tool cargo-public-api 0.52.0 || skip_all "cargo-public-api could not be installed"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/check"
step "cargo public-api"
cargo "+$nightly" public-api --package pinfeed --features arrays,candle,dlpack,nvjpeg,nvtx,object-store,rand_core,serde,testing,tokio,tracing,webdataset --omit blanket-impls |
    grep -vE '^impl.* !?core::(marker::(Freeze|StructuralPartialEq|Unpin|UnsafeUnpin)|panic::unwind_safe::(Ref)?UnwindSafe) for ' >"$list"
if [[ ${1:-} == --write ]]; then
    cp "$list" docs/api.txt
elif ! diff -u docs/api.txt "$list"; then
    echo "the public items are others than docs/api.txt says: \`ci/api.sh --write\` makes the list anew"
    exit 1
fi
note "$(wc -l <docs/api.txt) lines"
