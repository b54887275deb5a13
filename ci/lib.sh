# Sourced by the jobs: they run from the repository's root, and stop at the first failure.
#
# A line that begins with "skipped: " or "note: " is repeated in the summary of .ci/run. A job that has to be left out
# as a whole says so by `skip_all`, whose exit status .ci/run tells from success.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"
# The gate draws the same cases each time, so that a change is not held up by an old bug that a new seed finds. ci/seeds.sh draws new ones.
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-30}"

step() { printf '\n-- %s\n' "$*"; }
note() { printf 'note: %s\n' "$*"; }
skip() { printf 'skipped: %s\n' "$*"; }
skip_all() {
    skip "$*"
    exit 77
}

# Runs a command, after saying it.
run() {
    step "$*"
    "$@"
}

# `alone COMMAND`: no other job runs one of these meanwhile. (Jobs run side by side, and installers do not expect that.)
lock=$(realpath -m "${CARGO_TARGET_DIR:-target}/ci/installing")
mkdir -p "${lock%/*}"
alone() {
    if command -v flock >/dev/null; then
        flock "$lock" "$@"
    else
        "$@"
    fi
}

# The nightly of every job that needs one, so that no job breaks because a newer one came: Miri in it refuses how
# parking_lot_core 0.9 calls the system's futex, and the list of public items changes with rustdoc.
nightly=nightly-2026-05-20

# Installs it, with the components named, where they are missing.
install_nightly() {
    local component
    rustup run "$nightly" rustc --version >/dev/null 2>&1 ||
        run alone rustup toolchain install "$nightly" --profile minimal --no-self-update || return
    for component in "$@"; do
        run alone rustup component add "$component" --toolchain "$nightly" || return
    done
}

# Installs what libjpeg-turbo is built with, where that is missing and may be installed.
jpeg_tools() {
    command -v cmake >/dev/null && command -v nasm >/dev/null && return
    command -v apt-get >/dev/null || return
    local root=()
    [[ $(id -u) == 0 ]] || root=(sudo -n)
    { alone "${root[@]}" apt-get update && alone "${root[@]}" apt-get install -y cmake nasm; } >&2
}

# Every feature, one a line, but `default`, `shuttle`, those that need CUDA's compiler to build, and those whose tools are
# missing.
features() {
    local left_out="default candle-cuda shuttle"
    if ! jpeg_tools; then
        skip "the feature turbojpeg, for cmake or nasm are missing" >&2
        left_out+=" turbojpeg"
    fi
    cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
package = next(p for p in json.load(sys.stdin)["packages"] if p["name"] == "pinfeed")
print("\n".join(sorted(set(package["features"]) - set(sys.argv[1].split()))))' "$left_out"
}

# The same, with commas between.
all_features() { features | paste -sd, -; }

# Adds a component of the default toolchain, where rustup manages it and it is missing.
component() {
    command -v "$2" >/dev/null && "$2" --version >/dev/null 2>&1 && return
    run alone rustup component add "$1"
}

# Puts a tool of that version on the PATH. If it is missing, it is built into the target folder, unoptimized: that takes
# about 90 seconds of CPU time, an optimized build several minutes.
tool() {
    local tools="${CARGO_TARGET_DIR:-$PWD/target}/tools"
    PATH=$tools/bin:$PATH
    [[ $("$1" --version 2>/dev/null) == "$1 $2" ]] && return
    CARGO_PROFILE_DEV_DEBUG=0 run env -u CARGO_TARGET_DIR cargo install "$1" --version "$2" --locked --debug --root "$tools"
}

# Which package an example is in, as cargo's arguments; train is the one that needs no name.
target_of() {
    case $1 in
        train) echo "-p training" ;;
        probe) echo "--package probe" ;;
        imagenet | segmentation | detection) echo "-p training --bin $1" ;;
        *) echo "--example $1" ;;
    esac
}

# `answer STATUS EXAMPLE ARGUMENTS`: runs an example, which must end in that status, and keeps what it printed in $said and $errors.
answer() {
    local expected=$1 example=$2 status=0
    said=${CARGO_TARGET_DIR:-target}/said errors=${CARGO_TARGET_DIR:-target}/errors
    # shellcheck disable=SC2046 # these are several arguments
    cargo run --quiet --release $(target_of "$example") -- "${@:3}" >"$said" 2>"$errors" || status=$?
    [[ $status == "$expected" ]] && return
    printf '%s %s: exit status %s, and not %s\n' "$example" "${*:3}" "$status" "$expected"
    cat "$said" "$errors"
    return 1
}

# Asserts that an example says in plain words what it does, and what is wrong with an argument.
explains_itself() {
    step "$1: --help, and a wrong argument"
    answer 0 "$1" --help
    grep -q "^cargo run --release $(target_of "$1") -- " "$said"
    [[ ! -s $errors ]]
    answer 2 "$1" --no-such-option
    grep -q "there is no option --no-such-option" "$errors"
    grep -q "usage: cargo run --release $(target_of "$1") -- " "$errors"
    [[ ! -s $said ]]
}
