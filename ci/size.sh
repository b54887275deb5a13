#!/usr/bin/env bash
# A user builds few packages: counted, and bounded. How long that takes is measured, and only printed.
. "$(dirname "$0")/lib.sh"

most=75
count=$(cargo tree --package pinfeed -e normal,build --prefix none | sed 's/ (\*)$//' | sort -u | wc -l)
note "$count packages by default (at most $most)"
((count <= most))

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cargo fetch --quiet
start=$(date +%s)
CARGO_TARGET_DIR=$folder run cargo build --lib --package pinfeed
note "a first debug build of the library takes $(($(date +%s) - start)) s on $(nproc) cores"
