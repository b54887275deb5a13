#!/usr/bin/env bash
# The sources are as rustfmt's defaults leave them, and commits have subjects as CONTRIBUTING.md asks.
. "$(dirname "$0")/lib.sh"

component rustfmt rustfmt
run cargo fmt --all --check
for package in burn frameworks fuzz benches/pieces benches/peers/dataloader-rs benches/peers/beside; do
    run cargo fmt --manifest-path $package/Cargo.toml --check
done

# The subjects of commits; before this one, they followed no rule.
since=c4c919a
if git merge-base --is-ancestor $since HEAD 2>/dev/null; then
    step "subjects since $since: \"module: what changed\", 72 characters at most"
    git log --no-merges --format=%s $since.. | awk '
        length > 72 || !/^(Revert |[A-Za-z0-9_.\/-]+(, [A-Za-z0-9_.\/-]+)*: [^ ])/ { print; wrong = 1 }
        END { exit wrong }'
else
    skip "the subjects of commits: $since is not in this clone"
fi
