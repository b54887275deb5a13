#!/usr/bin/env bash
# The address sanitizer watches the unit tests, the conformance suite on the CPU device, and the hostile device's tests: no
# access outside of memory, none after it was freed. Of the first two, nothing leaks either, but where a test forgets a
# loan on purpose, or where a simulated process is killed: that unwinds out of a drop, and then the language itself leaks what a
# function was returning. The thread sanitizer watches the suite on the CPU device again: no thread reads what another may be writing.
. "$(dirname "$0")/lib.sh"

export CARGO_PROFILE_DEV_DEBUG=line-tables-only # reports name lines

install_nightly rust-src || skip_all "the toolchain $nightly could not be installed"
host=$(rustc "+$nightly" -vV | sed -n 's/^host: //p')
case $host in
    x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu | *-apple-darwin) ;;
    *) skip_all "there are no sanitizers for $host" ;;
esac
folder=${CARGO_TARGET_DIR:-$PWD/target}/sanitizers
suppressions=$(mktemp)
trap 'rm -f "$suppressions"' EXIT
printf 'leak:%s\n' conformance::stress forgotten processes::Plan >"$suppressions"
export PINFEED_PATIENCE=1800 # seconds, before a test counts as one that hangs
export LSAN_OPTIONS="suppressions=$suppressions:print_suppressions=0"

# A target that is named keeps build scripts and macros free of the flag. (Stacks are walked by frame pointers: without them, functions are missing
# that the suppressions name.)
address() {
    CARGO_TARGET_DIR=$folder/address RUSTFLAGS="-Zsanitizer=address -Cforce-frame-pointers=yes" run cargo "+$nightly" test --target "$host" "$@"
}
address --lib
address --test conformance -- cpu::
# Where a sample's drop panics, the language itself leaks what a function was returning.
ASAN_OPTIONS=detect_leaks=0 address --test hostile

# The standard library is built with the flag as well: it would not see the locks of another. crossbeam is told to do
# without fences, which it does not see. The test that is left out waits for a kernel of 300 ms, and is slowed beyond that.
CARGO_TARGET_DIR=$folder/thread RUSTFLAGS="-Zsanitizer=thread --cfg crossbeam_sanitize_thread" \
    run cargo "+$nightly" test -Zbuild-std --target "$host" --test conformance -- \
    cpu:: --skip copies_start_at_once_beside_a_slow_kernel
