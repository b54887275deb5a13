#!/usr/bin/env bash
# Each example runs, on the CPU and in seconds.
. "$(dirname "$0")/lib.sh"

run cargo build --release --examples
run cargo run --release --example transfer_bandwidth -- \
    --device cpu --batch-size 1 --frame-shape 3 64 64 --repeats 2 --warmup 1
run cargo run --release --example train -- --quick
run cargo run --release --example imagenet -- --quick --width 8 --size 32 --batch-size 32
run cargo run --release --example segmentation -- --quick
run cargo run --release --example detection -- --quick
for example in train imagenet segmentation detection; do # a folder that is not there is an error
    cargo run --release --example "$example" -- --data /nonexistent 2>/dev/null && exit 1
done
sheet=$(mktemp -d)
cargo run --release --example contact_sheet -- /nonexistent 2>/dev/null && exit 1 # a photo that is not there is an error
run env -C "$sheet" cargo run --release --manifest-path "$PWD/Cargo.toml" --example contact_sheet
[[ -s "$sheet/contact-sheet.png" ]]
