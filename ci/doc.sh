#!/usr/bin/env bash
# The documentation builds without a warning: no link that leads nowhere, in the public pages and in the private ones. As docs.rs builds it, by a
# nightly, pages say which feature an item needs.
. "$(dirname "$0")/lib.sh"

export RUSTDOCFLAGS="-D warnings"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/check" # clippy has checked all that documentation needs
run cargo doc --workspace --exclude probe --exclude training --exclude schedules --exclude pinfeed-parquet --exclude pinfeed-python --exclude watch --exclude watch-attribute --no-deps --features "$(all_features)"
run cargo doc --workspace --exclude probe --exclude training --exclude schedules --exclude pinfeed-parquet --exclude pinfeed-python --exclude watch --exclude watch-attribute --no-deps --features "$(all_features)" --document-private-items

# With the features and the flags of [package.metadata.docs.rs]; `ci/doc.sh` says so if they show nothing.
if ! install_nightly; then
    skip "the documentation as docs.rs builds it, for the toolchain $nightly could not be installed"
    exit 0
fi
as_docs_rs() {
    cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
package = next(p for p in json.load(sys.stdin)["packages"] if p["name"] == "pinfeed")
settings = package["metadata"]["docs"]["rs"]
print(",".join(settings["features"]) if sys.argv[1] == "features" else " ".join(settings["rustdoc-args"]))' "$1"
}
CARGO_TARGET_DIR=$CARGO_TARGET_DIR/docsrs
RUSTDOCFLAGS="-D warnings $(as_docs_rs flags)" run cargo "+$nightly" doc --package pinfeed --no-deps --features "$(as_docs_rs features)"
shown=$(grep -rlE "Available on <strong>crate feature" "$CARGO_TARGET_DIR/doc/pinfeed" | wc -l)
note "$shown pages say which feature they need"
((shown > 50)) # (all of the module `image`, for one)
