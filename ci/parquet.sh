#!/usr/bin/env bash
# The package pinfeed-parquet, which no other job's tests build: its tests, against files that pyarrow and Python's `datasets` wrote; its programs and
# its documentation; and its example, on files that it writes. (The gate leaves the package out: arrow takes minutes to build.)
. "$(dirname "$0")/lib.sh"

component clippy cargo-clippy
run cargo clippy --package pinfeed-parquet --all-targets --features object-store -- -D warnings
RUSTDOCFLAGS="-D warnings" run cargo doc --package pinfeed-parquet --no-deps --document-private-items
run cargo test --package pinfeed-parquet --features object-store
run cargo check --package pinfeed-parquet --no-default-features
run cargo check --package pinfeed-parquet --no-default-features --features object-store
run cargo run --package pinfeed-parquet --example parquet
cargo run --package pinfeed-parquet --example parquet -- /nonexistent 2>/dev/null && exit 1 # a folder that is not there is an error
run cargo run --package pinfeed-parquet --example parquet -- "parquet/tests/fixtures/codecs/*.parquet" x
run python3 -m py_compile parquet/benches/rows.py parquet/tests/fixtures/make.py
run cargo package --package pinfeed --package pinfeed-derive --package pinfeed-parquet --allow-dirty # (the last against the others as they were packed)
