#!/usr/bin/env bash
# The guide (docs/guide) is built into target/guide, and no link in it is broken: docs/guide/check.py. Its Rust is run by `cargo test` (tests/start, and doctests,
# `cargo test --doc guide::`), its Python by ci/python.sh (python/tests/test_guide.py).
#
# mdBook is installed by cargo into target/tools where it is missing, unoptimized: that takes about four minutes on two cores.
. "$(dirname "$0")/lib.sh"

version=0.5.4
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools")
mdbook=$tools/bin/mdbook
if [[ $("$mdbook" --version 2>/dev/null) != "mdbook v$version" ]]; then
    CARGO_PROFILE_DEV_DEBUG=0 run env -u CARGO_TARGET_DIR cargo install mdbook --version "$version" --no-default-features --features search --locked --debug --root "$tools" ||
        skip_all "mdBook could not be installed"
fi
book=$(realpath -m "${CARGO_TARGET_DIR:-target}/guide")
rm -rf "$book"
step "mdbook build"
"$mdbook" build docs/guide --dest-dir "$book" 2>&1 | tee "$book.log"
if grep -Ei "^ *(WARN|ERROR)|\[(WARN|ERROR)\]" "$book.log"; then
    echo "mdBook has warnings"
    exit 1
fi
run python3 docs/guide/check.py "$book"
