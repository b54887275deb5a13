#!/usr/bin/env bash
# The whole pipeline under schedules that shuttle chooses: tests/shuttle. A failure prints the seed that repeats it. Then bugs are
# planted, which the scenarios must find: seconds more.
#
#     ci/shuttle.sh                       the same schedules each time, and the planted bugs: what the gate runs
#     ci/shuttle.sh 600                   new ones, for ten minutes together
#     ci/shuttle.sh 600 a_name            ten minutes for the scenarios of that name
#     PINFEED_SEED=… ci/shuttle.sh 1 a_name     one schedule, as a failure says
. "$(dirname "$0")/lib.sh"

seconds=${1:-}
shift || true

# Optimized, for thousands of schedules a second; with the checks of a debug build. In a folder of its own, for the flag builds
# every dependency anew.
export CARGO_PROFILE_DEV_OPT_LEVEL=2
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/shuttle"
export RUSTFLAGS="${RUSTFLAGS:-} --cfg shuttle"
component clippy cargo-clippy
run cargo clippy --quiet -p schedules --all-targets -- -D warnings -A clippy::let_unit_value
test=(cargo test --quiet -p schedules)
run "${test[@]}" --no-run
listed=$("${test[@]}" -- --list "$@" | grep ': test$')
scenarios=$(grep -cv '^planted::' <<<"$listed" || true)
planted=$(grep -c '^planted::' <<<"$listed" || true)
if [[ $seconds ]]; then
    # What is planted is found by the gate.
    PINFEED_SECONDS=$(awk "BEGIN { print $seconds / ($scenarios > 0 ? $scenarios : 1) }")
    export PINFEED_SECONDS
    run "${test[@]}" -- --test-threads=1 --nocapture --skip planted:: "$@"
    note "$scenarios scenarios in $seconds s, under new schedules"
else
    export PINFEED_FIRST_SEED=31 PINFEED_SCHEDULES=1000 PINFEED_SECONDS=600
    run "${test[@]}" -- --test-threads=1 --nocapture
    note "$scenarios scenarios, each under the same $PINFEED_SCHEDULES schedules; $planted planted bugs are found"
fi
