#!/usr/bin/env bash
# What the gate does with the same seeds each time is done with new ones: schedules of the pipeline's threads, the hostile device's delays,
# programs drawn by proptest, and processes that die with a cache on a simulated disk. A failure names its seed, which becomes a test before
# anything else is done.
#
#     ci/seeds.sh             five minutes of schedules, then the tests five times
#     SEEDS_SECONDS=3600 ci/seeds.sh
. "$(dirname "$0")/lib.sh"

export PROPTEST_DISABLE_FAILURE_PERSISTENCE=true
seconds="${SEEDS_SECONDS:-300}"
mapfile -t tests < <(grep -rl --include='*.rs' 'proptest!' tests/*/ | sed 's|tests/\([^/]*\)/.*|--test=\1|' | sort -u)
run cargo test --no-run --lib --test hostile "${tests[@]}"
for _ in {1..5}; do
    PROPTEST_RNG_SEED=$((RANDOM * 32768 + RANDOM))
    export PROPTEST_RNG_SEED
    step "PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
    cargo test --lib --test hostile "${tests[@]}"
done
PINFEED_SEED=$((RANDOM * 32768 + RANDOM)) PINFEED_SECONDS=20 run cargo test --lib store::cache::simulation -- --nocapture
run bash ci/shuttle.sh "$seconds"
note "$seconds s of schedules; hostile and ${#tests[@]} other groups of tests, and the unit tests, five times"
