#!/usr/bin/env bash
# Combinations of the features compile, without a warning of the compiler or of clippy: a feature adds, and needs no
# other that it does not name.
#
# All combinations of nine features would be 512, of seconds each, and two features are the most that meet in one place
# of the source. So: every combination of the default features, alone and with all others; each pair; all but one.
# `ci/features.sh --all` takes all combinations. `candle-cuda` is left out: building it takes CUDA's compiler. Warnings
# are denied by clippy's own flag and not by RUSTFLAGS, which would build every dependency anew.
. "$(dirname "$0")/lib.sh"

component clippy cargo-clippy
mapfile -t combinations < <(features | python3 -c '
import sys
from itertools import combinations

features = sys.stdin.read().split()
defaults = ["cuda", "derive", "image"]
others = [feature for feature in features if feature not in defaults]

def subsets(of, sizes):
    return [list(chosen) for size in sizes for chosen in combinations(of, size)]

if "--all" in sys.argv:
    wanted = subsets(features, range(len(features) + 1))
else:
    wanted = subsets(defaults, range(len(defaults) + 1))
    wanted += [chosen + others for chosen in wanted]
    wanted += subsets(features, [1, 2, len(features) - 1])
print("\n".join(dict.fromkeys(",".join(sorted(chosen)) for chosen in wanted)))' "$@")

step "${#combinations[@]} combinations"
for combination in "${combinations[@]}"; do
    printf '[%s]\n' "$combination"
    cargo clippy --quiet --lib --no-default-features --features "$combination" -- -D warnings
done
note "${#combinations[@]} combinations of $(all_features)"
