#!/usr/bin/env bash
# Each example runs, on the CPU and in seconds; and says in plain words what it does, and what is wrong with an argument.
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

# `answer STATUS EXAMPLE ARGUMENTS`: runs it, which must end in that status, and keeps what it printed.
said=$(mktemp)
errors=$(mktemp)
trap 'rm -rf "$sheet" "$said" "$errors"' EXIT
answer() {
    local expected=$1 example=$2 status=0
    cargo run --quiet --release --example "$example" -- "${@:3}" >"$said" 2>"$errors" || status=$?
    [[ $status == "$expected" ]] && return
    printf '%s %s: exit status %s, and not %s\n' "$example" "${*:3}" "$status" "$expected"
    cat "$said" "$errors"
    return 1
}
for example in train imagenet segmentation detection contact_sheet transfer_bandwidth; do
    step "$example: --help, and a wrong argument"
    answer 0 "$example" --help
    grep -q "cargo run --release --example $example -- " "$said"
    [[ ! -s $errors ]]
    answer 2 "$example" --no-such-option
    grep -q "there is no option --no-such-option" "$errors"
    grep -q "usage: cargo run --release --example $example -- " "$errors"
    [[ ! -s $said ]]
done
answer 2 train --epochs many
grep -q 'error: --epochs wants a whole number above 0, such as 4, not "many"' "$errors"
answer 2 transfer_bandwidth --frame-shape 3 x
answer 2 contact_sheet one.jpg two.png three
answer 1 contact_sheet /nonexistent.jpg
grep -q "error: /nonexistent.jpg: " "$errors"
