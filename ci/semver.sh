#!/usr/bin/env bash
# What is published keeps its promise: since the last tag v*, no public item of the library's is gone or other, unless the version in Cargo.toml
# says so (Semantic Versioning; before 1.0, the minor version). Without a tag there is nothing to compare with, and the job is left out.
#
#     ci/semver.sh REV        compares with another revision
#
# docs/api.txt shows each change in review (ci/api.sh); this job knows which of them break programs.
. "$(dirname "$0")/lib.sh"

baseline=${1:-$(git describe --tags --match 'v[0-9]*' --abbrev=0 2>/dev/null || true)}
[[ -n $baseline ]] || skip_all "there is no tag v*: nothing was published that could be broken"
tool cargo-semver-checks 0.51.0 || skip_all "cargo-semver-checks could not be installed"
for package in pinfeed pinfeed-parquet; do
    run cargo semver-checks --package "$package" --baseline-rev "$baseline" --default-features
done
note "compared with $baseline, with default features"
