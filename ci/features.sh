#!/usr/bin/env bash
# Combinations of the features compile, without a warning of the compiler or of clippy: a feature adds, and needs no
# other that it does not name.
#
# All combinations of ten features would be 1,024, of seconds each, and hardly more than two features meet in one place of
# the source. So there are some twenty, in which each choice of three features is on and off in every way that it can be (a
# covering array of strength 3, found greedily): each is alone with each other, and missing where all others are.
# `ci/features.sh --all` takes all combinations. `candle-cuda` is left out: building it takes CUDA's compiler. Warnings
# are denied by clippy's own flag and not by RUSTFLAGS, which would build every dependency anew.
. "$(dirname "$0")/lib.sh"

component clippy cargo-clippy
mapfile -t combinations < <(features | python3 -c '
import json, subprocess, sys
from itertools import chain, combinations

names = sys.stdin.read().split()
metadata = json.loads(subprocess.check_output("cargo metadata --no-deps --format-version 1".split()))
names_what = next(package for package in metadata["packages"] if package["name"] == "pinfeed")["features"]

# Together with what its features name.
def closed(chosen):
    named = set(chain.from_iterable(names_what[name] for name in chosen)) & set(names)
    return chosen if named <= chosen else closed(chosen | named)

every = {closed(frozenset(chosen)) for size in range(len(names) + 1) for chosen in combinations(names, size)}
every = sorted(every, key=lambda chosen: (len(chosen), sorted(chosen)))
if "--all" not in sys.argv:
    def ways(chosen):
        return {tuple((name, name in chosen) for name in three) for three in combinations(names, 3)}
    # None and all of them first.
    wanted = [every[0], every[-1]]
    open = set().union(*map(ways, every)) - ways(every[0]) - ways(every[-1])
    while open:
        wanted.append(max(every, key=lambda chosen: len(ways(chosen) & open)))
        open -= ways(wanted[-1])
    every = wanted
print("\n".join(",".join(sorted(chosen)) for chosen in every))' "$@")

# The tests, examples and benches too, with the default features and with none. (With all, the job clippy checks them.) And
# the packages of examples/ alone: together with the library, they would turn features on there.
library=(--workspace --exclude probe --exclude training --exclude schedules --exclude pinfeed-parquet --exclude pinfeed-python)
run cargo clippy "${library[@]}" --all-targets -- -D warnings
run cargo clippy "${library[@]}" --all-targets --no-default-features -- -D warnings
run cargo clippy --package training --all-targets -- -D warnings
run cargo clippy --package probe --all-targets -- -D warnings
step "${#combinations[@]} combinations"
for combination in "${combinations[@]}"; do
    printf '[%s]\n' "$combination"
    cargo clippy --quiet --lib --no-default-features --features "$combination" -- -D warnings
done
note "${#combinations[@]} combinations of $(all_features)"
