#!/usr/bin/env bash
# Remote stores against a real S3 server on the loopback, which the tests start and stop: s3s-fs, alone and behind a relay that cuts connections.
# It is built where it is missing, which takes some five minutes of CPU time.
. "$(dirname "$0")/lib.sh"

version=0.14.1
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools")
server=$tools/bin/s3s-fs
if [[ $("$server" --version 2>/dev/null) != "s3s-fs $version" ]]; then
    CARGO_PROFILE_DEV_DEBUG=0 run env -u CARGO_TARGET_DIR cargo install s3s-fs --version "$version" --features binary --locked --debug --root "$tools" ||
        skip_all "s3s-fs could not be installed"
fi
export PINFEED_S3S_FS=$server
run cargo test --features object-store --test remote -- --include-ignored
note "s3s-fs $version"
