#!/usr/bin/env bash
# cargo-deny holds what a program would link against deny.toml: licences, bans, sources, and advisories of the RustSec
# database (the one that cargo-audit reads, so that needs no job of its own). cargo-deny is built where it is missing; the database is fetched from
# GitHub, and skipped where that is out of reach.
. "$(dirname "$0")/lib.sh"

tool cargo-deny 0.20.2 || skip_all "cargo-deny could not be installed"
checks=(bans licenses sources)
if run cargo deny fetch db; then
    checks+=(advisories)
else
    skip "advisories: their database could not be fetched"
fi
run cargo deny --workspace --features "$(all_features)" check "${checks[@]}"
note "checked: ${checks[*]}"

# pinfeed-burn has a lock file of its own. (Its licences and duplicates are burn's to choose.)
if cargo fetch --locked --quiet --manifest-path burn/Cargo.toml; then
    of_burn=(sources)
    [[ ${checks[*]} == *advisories* ]] && of_burn+=(advisories)
    run cargo deny --manifest-path burn/Cargo.toml --config deny.toml check "${of_burn[@]}"
    note "checked of pinfeed-burn: ${of_burn[*]}"
else
    skip "pinfeed-burn, for burn could not be fetched"
fi
