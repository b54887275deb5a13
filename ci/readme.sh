#!/usr/bin/env bash
# README's command that trains, and the tests of its package, which hold README's lines. (Its command that tests is ci/test.sh.)
. "$(dirname "$0")/lib.sh"

run cargo run --release --package training -- --quick
run cargo test --release --package training --lib --test "*"
cargo run --release --package training -- --data /nonexistent 2>/dev/null && exit 1 # a folder that is not there is an error
explains_itself train
answer 2 train --epochs many
grep -q 'error: --epochs wants a whole number above 0, such as 4, not "many"' "$errors"
