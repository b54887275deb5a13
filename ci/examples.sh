#!/usr/bin/env bash
# Each example runs, on the CPU and in seconds.
. "$(dirname "$0")/lib.sh"

run cargo run --release --example transfer_bandwidth -- \
    --device cpu --batch-size 1 --frame-shape 3 64 64 --repeats 2 --warmup 1
if [[ -e examples/train || -e examples/train.rs ]]; then
    run cargo run --release --example train -- --quick
fi
sheet=$(mktemp -d)
cargo run --release --example contact_sheet -- /nonexistent 2>/dev/null && exit 1 # a photo that is not there is an error
run env -C "$sheet" cargo run --release --manifest-path "$PWD/Cargo.toml" --example contact_sheet
[[ -s "$sheet/contact-sheet.png" ]]
