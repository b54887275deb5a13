#!/usr/bin/env bash
# The programs of examples/training that README does not run: each trains, on the CPU and in seconds, and says in plain words what it does,
# and what is wrong with an argument. And what the documentation says of candle's tensors.
. "$(dirname "$0")/lib.sh"

run cargo test --release --features candle --doc -- candle
run cargo build --release --package training --bin imagenet
# Quick means seconds, and little memory: 2 GiB at most, of which each page counts that may be written.
run bash -c "ulimit -d 2097152 && exec cargo run --release --package training --bin imagenet -- --quick"
run cargo run --release --package training --bin imagenet --features nvjpeg -- \
    --quick --width 8 --size 32 --batch-size 32 --decode both
cargo run --release --package training --bin imagenet -- --quick --decode both && exit 1 # that needs a feature
run cargo run --release --package training --bin segmentation -- --quick
run cargo run --release --package training --bin detection -- --quick
for example in imagenet segmentation detection; do
    # A folder that is not there is an error.
    cargo run --release --package training --bin "$example" -- --data /nonexistent 2>/dev/null && exit 1
    explains_itself $example
done
