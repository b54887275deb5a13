#!/usr/bin/env bash
# Each example runs, on the CPU and in seconds; and says in plain words what it does, and what is wrong with an argument.
# Those that train are a package, examples/training, whose tests are those of candle's tensors.
. "$(dirname "$0")/lib.sh"

run cargo build --release --examples
run cargo test --release --package training --lib --test "*"
run cargo test --release --features candle --doc -- candle
for example in quickstart tabular text_lines; do
    run cargo run --release --example "$example"
done
run cargo run --release --example text_lines -- LICENSE-MIT
cargo run --release --example text_lines -- /nonexistent 2>/dev/null && exit 1 # a file that is not there is an error
run cargo run --release --example transfer_bandwidth -- \
    --device cpu --batch-size 1 --frame-shape 3 64 64 --repeats 2 --warmup 1
run cargo run --release --example slow_source -- --in-flight 16 --latency-ms 2 --seconds 1
run cargo run --release --example placement -- --device cpu --cores 0
run cargo run --release --package training -- --quick
run cargo build --release --package training --bin imagenet
# Quick means seconds, and little memory: 2 GiB at most, of which each page counts that may be written.
run bash -c "ulimit -d 2097152 && exec cargo run --release --package training --bin imagenet -- --quick"
run cargo run --release --package training --bin imagenet --features nvjpeg -- \
    --quick --width 8 --size 32 --batch-size 32 --decode both
cargo run --release --package training --bin imagenet -- --quick --decode both && exit 1 # that needs a feature
run cargo run --release --package training --bin segmentation -- --quick
run cargo run --release --package training --bin detection -- --quick
for example in train imagenet segmentation detection; do # a folder that is not there is an error
    cargo run --release --package training --bin "$example" -- --data /nonexistent 2>/dev/null && exit 1
done
sheet=$(mktemp -d)
cargo run --release --example contact_sheet -- /nonexistent --out "$sheet/sheet.png" 2>/dev/null && exit 1 # a photo that is not there is an error
run cargo run --release --example contact_sheet -- --out "$sheet/sheet.png"
[[ -s "$sheet/sheet.png" ]]
run cargo run --release --example timeline -- --batches 10 --out "$sheet/timeline.html" --trace "$sheet/trace.json"
grep -q "<canvas" "$sheet/timeline.html"
python3 -m json.tool "$sheet/trace.json" >/dev/null

# Which package an example is in, as cargo's arguments; train is the one that needs no name.
target_of() {
    case $1 in
        train) echo "-p training" ;;
        imagenet | segmentation | detection) echo "-p training --bin $1" ;;
        *) echo "--example $1" ;;
    esac
}

# `answer STATUS EXAMPLE ARGUMENTS`: runs it, which must end in that status, and keeps what it printed.
said=$(mktemp)
errors=$(mktemp)
trap 'rm -rf "$sheet" "$said" "$errors"' EXIT
answer() {
    local expected=$1 example=$2 status=0
    # shellcheck disable=SC2046 # these are several arguments
    cargo run --quiet --release $(target_of "$example") -- "${@:3}" >"$said" 2>"$errors" || status=$?
    [[ $status == "$expected" ]] && return
    printf '%s %s: exit status %s, and not %s\n' "$example" "${*:3}" "$status" "$expected"
    cat "$said" "$errors"
    return 1
}
for example in train imagenet segmentation detection contact_sheet transfer_bandwidth placement ranks slow_source timeline; do
    step "$example: --help, and a wrong argument"
    answer 0 "$example" --help
    grep -q "^cargo run --release $(target_of "$example") -- " "$said"
    [[ ! -s $errors ]]
    answer 2 "$example" --no-such-option
    grep -q "there is no option --no-such-option" "$errors"
    grep -q "usage: cargo run --release $(target_of "$example") -- " "$errors"
    [[ ! -s $said ]]
done
answer 2 train --epochs many
grep -q 'error: --epochs wants a whole number above 0, such as 4, not "many"' "$errors"
answer 2 transfer_bandwidth --frame-shape 3 x
answer 2 ranks --global-batch 0
answer 2 contact_sheet one.jpg two.png --out three.png
answer 2 contact_sheet # nothing is written where nobody said so
answer 1 contact_sheet /nonexistent.jpg --out sheet.png
grep -q "error: /nonexistent.jpg: " "$errors"
