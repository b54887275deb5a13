#!/usr/bin/env bash
# libFuzzer feeds both JPEG decoders, and all others, with damaged pictures, and what reads files of arrays and tokens with those: a panic of
# ours, a memory error, a file that takes 10 s or 256 MB at once is a failure. The files that it starts from are the tests' own.
#
# "encoded" is the reading of files that a device is to decode. "shards" (tar shards and indexes of them), "streams" (compressed shards) and
# "arrays" (files of arrays and tokens) have no part in the decoders.
#
#     ci/fuzz.sh              30 s with each JPEG decoder and program, and with "arrays", "shards" and "streams"
#     FUZZ_SECONDS=600 ci/fuzz.sh
#
# It is built as `cargo fuzz` would build it, which needs not be installed for it: by nightly, with the address sanitizer and
# libFuzzer's counters. A failure names the file that shows it, in fuzz/artifacts.
. "$(dirname "$0")/lib.sh"

seconds="${FUZZ_SECONDS:-30}"
install_nightly || skip_all "the toolchain $nightly could not be installed"
command -v c++ >/dev/null || skip_all "libFuzzer is built by a C++ compiler, and there is none"
host=$(rustc "+$nightly" -vV | sed -n 's/^host: //p')
target="${CARGO_TARGET_DIR:-$PWD/target}/fuzz"
# The versions that the tests run with.
cp Cargo.lock fuzz/Cargo.lock
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
coverage+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
coverage+=" -Cllvm-args=-sanitizer-coverage-trace-compares"

decoders=(default)
programs=(decode encoded)
if jpeg_tools; then
    decoders+=(turbojpeg)
else
    skip "libjpeg-turbo, for cmake or nasm are missing"
fi
mkdir -p fuzz/artifacts

# fuzz NAME PROGRAM FOLDER..: runs a program on what is in the folders. What it finds goes to a folder of that name.
fuzz() {
    local corpus="fuzz/corpus/$1" program=$2
    shift 2
    # The first folder takes what is found.
    mkdir -p "$corpus"
    run "$target/$host/release/$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
        -malloc_limit_mb=256 -max_len=20480 -seed="${FUZZ_SEED:-17}" -verbosity=0 \
        -artifact_prefix=fuzz/artifacts/ "$corpus" "$@" ||
        exit 1 # libFuzzer's own status, 77, says here that a job was left out
}

for decoder in "${decoders[@]}"; do
    # Only the programs that decode are built for another decoder. (A target that is named keeps build scripts and macros free of the flags.)
    bins=(--bins)
    [[ $decoder == default ]] || bins=("${programs[@]/#/--bin=}")
    CARGO_TARGET_DIR=$target RUSTFLAGS="--cfg fuzzing -Zsanitizer=address $coverage" \
        run cargo "+$nightly" build --manifest-path fuzz/Cargo.toml --release --target "$host" --features "$decoder" "${bins[@]}"
    for program in "${programs[@]}"; do
        fuzz "$decoder-$program" "$program" tests/fixtures/pictures tests/data
    done
done
fuzz arrays arrays tests/fixtures/arrays
fuzz shards shards tests/fixtures/shards
fuzz streams streams tests/fixtures/streams tests/fixtures/shards
note "$seconds s with each of: ${decoders[*]}, ${programs[*]}; and with arrays, shards and streams"
