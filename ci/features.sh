#!/usr/bin/env bash
# Every combination of the features compiles, without a warning of the compiler or of clippy: each feature adds, none
# needs another that it does not name.
#
# `candle-cuda` is left out: building it takes CUDA's compiler. Warnings are denied by clippy's own flag and not by
# RUSTFLAGS, which would build every dependency anew.
. "$(dirname "$0")/lib.sh"

component clippy cargo-clippy
mapfile -t features < <(features)
combinations=$((1 << ${#features[@]}))
step "${#features[@]} features (${features[*]}): $combinations combinations"
for ((combination = 0; combination < combinations; combination++)); do
    chosen=()
    for ((feature = 0; feature < ${#features[@]}; feature++)); do
        ((combination >> feature & 1)) && chosen+=("${features[feature]}")
    done
    list=$(IFS=, && printf '%s' "${chosen[*]-}")
    printf '%s\n' "[${list}]"
    cargo clippy --quiet --lib --no-default-features --features "$list" -- -D warnings
done
note "$combinations combinations of ${features[*]}"
