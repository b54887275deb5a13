#!/usr/bin/env bash
# Each example runs, on the CPU and in seconds; and says in plain words what it does, and what is wrong with an argument.
# Those that train are a package, examples/training: ci/readme.sh runs README's program, and ci/training.sh the others. examples/probe is one, too.
. "$(dirname "$0")/lib.sh"

run cargo build --release --examples
for example in quickstart tabular text_lines; do
    run cargo run --release --example "$example"
done
run cargo run --release --features arrays --example arrays
run cargo run --release --features arrays --example arrays -- tests/fixtures/arrays/{table.csv,type-lf4.npy,stored.npz,all.safetensors,labels-idx1-ubyte}
cargo run --release --features arrays --example arrays -- LICENSE-MIT 2>/dev/null && exit 1 # it is no file of arrays
run cargo run --release --features arrays --example tokens
cargo run --release --features arrays --example tokens -- LICENSE-MIT 2>/dev/null && exit 1 # an odd number of bytes is no file of tokens
run cargo run --release --features webdataset --example webdataset
run cargo run --release --features webdataset,object-store --example bucket
cargo run --release --features webdataset,object-store --example bucket -- one 2>/dev/null && exit 1 # it wants a field and a folder, too
# Four processes train together, and are killed; two go on where the last checkpoint stands. Both together have trained on each sample once an epoch.
step "distributed: four ranks are killed, two go on"
cargo build --quiet --release --features webdataset,object-store --example distributed
run_of=$(mktemp -d)
ranks() {
    local size=$1 rank
    shift
    for ((rank = 0; rank < size; rank++)); do
        RANK=$rank WORLD_SIZE=$size LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$size "${CARGO_TARGET_DIR:-target}/release/examples/distributed" --device cpu \
            --epochs 2 --global-batch 16 --save-every 5 --checkpoint "$run_of/checkpoint" "$@" &
        started+=($!)
    done
}
started=()
ranks 4 --trace "$run_of/before" --pause-ms 60
while [[ ! -e $run_of/checkpoint ]]; do
    kill -0 "${started[@]}" # they are alive
    sleep 0.1
done
kill -KILL "${started[@]}"
wait "${started[@]}" 2>/dev/null || true
position=$(sed -n '1s/.* position=\([0-9]*\) .*/\1/p' "$run_of/checkpoint")
started=()
ranks 2 --trace "$run_of/after"
for process in "${started[@]}"; do
    wait "$process"
done
((position > 0))
awk -v position="$position" 'FILENAME ~ /after/ || $1 == 0 && $2 < position { for (i = 3; i <= NF; i++) print $1, $i }' "$run_of"/{before,after}/* | sort >"$run_of/trained"
[[ $(wc -l <"$run_of/trained") == 1400 && $(sort -u "$run_of/trained" | wc -l) == 1400 ]]
rm -rf "$run_of"
run cargo run --release --example text_lines -- LICENSE-MIT
cargo run --release --example text_lines -- /nonexistent 2>/dev/null && exit 1 # a file that is not there is an error
run cargo run --release --example transfer_bandwidth -- \
    --device cpu --batch-size 1 --frame-shape 3 64 64 --repeats 2 --warmup 1
# On all devices, or without a GPU on the CPU.
run cargo run --release --example transfer_bandwidth -- --batch-size 1 --frame-shape 3 64 64 --repeats 2 --warmup 1
run cargo run --release --example slow_source -- --in-flight 16 --latency-ms 2 --seconds 1
run cargo run --release --example placement -- --device cpu --cores 0
# These answer a question each, on a GPU if there is one. `corruption` fails if a byte of the library's is wrong, `question_growth` if memory accumulates.
device=()
[[ ${PINFEED_REQUIRE_CUDA:-} == 1 ]] && device=(--device cuda:0)
run cargo run --release --example corruption -- --megabytes 16 "${device[@]}"
run cargo run --release --example question_process -- --megabytes 256 "${device[@]}"
run cargo run --release --example question_growth -- "${device[@]}"
run cargo run --release --example question_worth -- --repeats 10 "${device[@]}"
# These want a GPU, and NVRTC. Without one, they say in plain words what is missing.
for example in cudarc_01_kernel "cudarc_02_predictions -- ${CARGO_TARGET_DIR:-target}/predictions.csv"; do
    step "$example"
    # shellcheck disable=SC2086 # these are several arguments
    if ! cargo run --quiet --release --example $example 2>"${CARGO_TARGET_DIR:-target}/errors"; then
        cat "${CARGO_TARGET_DIR:-target}/errors"
        [[ ${PINFEED_REQUIRE_CUDA:-} != 1 ]]
        grep -Eq "^error: .*(CUDA|NVRTC|GPU|driver)" "${CARGO_TARGET_DIR:-target}/errors"
        skip "the example $example was compiled, and not run: $(head -n 1 "${CARGO_TARGET_DIR:-target}/errors")"
    fi
done

sheet=$(mktemp -d)
trap 'rm -rf "$sheet"' EXIT
cargo run --release --example contact_sheet -- /nonexistent --out "$sheet/sheet.png" 2>/dev/null && exit 1 # a photo that is not there is an error
run cargo run --release --example contact_sheet -- --out "$sheet/sheet.png"
[[ -s "$sheet/sheet.png" ]]
run cargo run --release --example timeline -- --batches 10 --out "$sheet/timeline.html" --trace "$sheet/trace.json"
grep -q "<canvas" "$sheet/timeline.html"
python3 -m json.tool "$sheet/trace.json" >/dev/null

run cargo test --release --package probe
run cargo run --release --package probe -- --quick
step "probe --quick --json --html"
cargo run --quiet --release --package probe -- --quick --json --html "$sheet/probe.html" >"$sheet/probe.json"
python3 -m json.tool "$sheet/probe.json" >/dev/null
grep -q "<svg" "$sheet/probe.html"
cargo run --release --package probe -- --quick --html /nonexistent/probe.html 2>/dev/null && exit 1 # no page can be written there

for example in contact_sheet corruption placement probe question_growth question_process question_worth ranks slow_source timeline transfer_bandwidth; do
    explains_itself $example
done
answer 2 transfer_bandwidth --frame-shape 3 x
answer 2 transfer_bandwidth --device gpu
answer 2 probe --html # it wants a file
answer 2 probe quick
answer 2 ranks --global-batch 0
answer 2 contact_sheet one.jpg two.png --out three.png
answer 2 contact_sheet # nothing is written where nobody said so
answer 1 contact_sheet /nonexistent.jpg --out sheet.png
grep -q "error: /nonexistent.jpg: " "$errors"
