#!/usr/bin/env bash
# Each example runs, on the CPU and in seconds.
. "$(dirname "$0")/lib.sh"

run cargo run --release --example transfer_bandwidth -- \
    --device cpu --batch-size 1 --frame-shape 3 64 64 --repeats 2 --warmup 1
if [[ -e examples/train || -e examples/train.rs ]]; then
    run cargo run --release --example train -- --quick
fi
