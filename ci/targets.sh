#!/usr/bin/env bash
# The library, its tests, examples and benches are checked for systems that this one is not. Nothing is linked or run.
# (Not pinfeed-parquet, which builds zstd, which is C; nor pinfeed-python, which needs that system's Python.)
. "$(dirname "$0")/lib.sh"

targets=(x86_64-pc-windows-msvc aarch64-apple-darwin aarch64-unknown-linux-gnu)
checked=()
for target in "${targets[@]}"; do
    if ! run alone rustup target add "$target"; then
        skip "$target: rustup could not add it"
        continue
    fi
    run cargo clippy --workspace --exclude schedules --exclude pinfeed-parquet --exclude pinfeed-python --all-targets --target "$target" -- -D warnings
    checked+=("$target")
done
((${#checked[@]})) || skip_all "no target could be added"
note "checked for ${checked[*]}"
