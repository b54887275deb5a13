#!/usr/bin/env bash
# The address sanitizer watches the unit tests, the conformance suite on the CPU device, and the hostile device's tests: no
# access outside of memory, none after it was freed. Of the first two, nothing leaks either, but where a test forgets a
# loan on purpose.
. "$(dirname "$0")/lib.sh"

install_nightly || skip_all "the toolchain $nightly could not be installed"
host=$(rustc "+$nightly" -vV | sed -n 's/^host: //p')
case $host in
    x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu | *-apple-darwin) ;;
    *) skip_all "there is no address sanitizer for $host" ;;
esac
suppressions=$(mktemp)
trap 'rm -f "$suppressions"' EXIT
printf 'leak:%s\n' conformance::stress forgotten >"$suppressions"
export LSAN_OPTIONS="suppressions=$suppressions:print_suppressions=0"

# A target that is named keeps build scripts and macros free of the flag.
watched() {
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/sanitizers RUSTFLAGS=-Zsanitizer=address \
        run cargo "+$nightly" test --target "$host" "$@"
}
watched --lib
watched --test conformance -- cpu::
ASAN_OPTIONS=detect_leaks=0 watched --test hostile
