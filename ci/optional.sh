#!/usr/bin/env bash
# The tests of features that are off by default and need no tools. (With nvjpeg, the job `turbojpeg` tests more.)
. "$(dirname "$0")/lib.sh"

export PINFEED_SEED="${PINFEED_SEED:-30}" # of the hostile device's tests
run cargo test --features nvjpeg,nvtx,object-store --test connections --test nvtx --test remote
