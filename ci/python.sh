#!/usr/bin/env bash
# The package for Python: clippy; the wheel, as `pip` gets it, and its size; the archive of sources; and tests in Python against the installed wheel, with NumPy alone,
# with Ray, with torch, and on a free-threaded Python.
#
# Tests of buckets run where `ci/servers.sh` has installed its servers (in target/tools, or where PINFEED_S3S_FS and PINFEED_MOTO say).
#
# It makes an environment of its own in the target folder, of what PyPI has. torch is several gigabytes there: PINFEED_TORCH=1 installs it, and
# PINFEED_PYTHON names an interpreter that has it, NumPy, Pillow, torchvision and pytest. Without either, the tests that compare with torch are
# left out. A free-threaded Python gets a wheel of its own, and the tests with NumPy: PINFEED_FREE_THREADED names one that is not on the PATH
# as python3.14t.
. "$(dirname "$0")/lib.sh"

if ! python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    skip_all "Python 3.11 with venv is missing"
fi
component clippy cargo-clippy
CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/check" run cargo clippy --package pinfeed-python --all-targets --features nvjpeg,object-store -- -D warnings

here=$(realpath -m "${CARGO_TARGET_DIR:-target}/python")
wheels=$here/wheels
rm -rf "$wheels"
mkdir -p "$here"
[[ -x $here/plain/bin/python ]] || run python3 -m venv "$here/plain"
plain=$here/plain/bin/python
if ! run "$plain" -m pip install --quiet "maturin>=1.16,<2" mypy numpy pillow pyarrow pytest safetensors; then
    skip_all "PyPI is not reachable"
fi

# (The wheel has libjpeg-turbo, where it can be built.)
features=()
if ! jpeg_tools; then
    skip "libjpeg-turbo in the wheel, for cmake or nasm are missing"
    features=(--features nvjpeg,object-store) # (in the place of those of pyproject.toml)
fi
run python3 -m py_compile python/benches/*.py python/tests/*.py python/tests/programs/*.py
run "$plain" -m maturin build --manifest-path python/Cargo.toml --interpreter "$plain" --compression-level 9 --out "$wheels" "${features[@]}"
# A wheel of less than 10 MB.
small() {
    local bytes
    bytes=$(stat --format %s "$1")
    note "$(basename "$1"): $((bytes / 1024)) KiB"
    ((bytes < 10 * 1024 * 1024))
}
wheel=$(echo "$wheels"/pinfeed-*-cp311-abi3-*.whl)
small "$wheel"

# The archive of sources, from which `pip` builds where no wheel fits: it has all that the module is built of. (Types are checked; what the wheel was
# built of was built.)
run "$plain" -m maturin sdist --manifest-path python/Cargo.toml --out "$wheels"
small "$wheels"/pinfeed-*.tar.gz
rm -rf "$here/source"
mkdir -p "$here/source"
tar -xzf "$wheels"/pinfeed-*.tar.gz -C "$here/source" --strip-components 1
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}/check") run cargo check --manifest-path "$here/source/python/Cargo.toml" --features nvjpeg,object-store

step "what PyPI is told, and what the packages bring"
python3 - "$wheel" "$wheels"/pinfeed-*.tar.gz <<'END'
import sys, tarfile, zipfile
wheel, archive = zipfile.ZipFile(sys.argv[1]), tarfile.open(sys.argv[2])
names = {"wheel": wheel.namelist(), "sdist": archive.getnames()}
metadata = {
    "wheel": wheel.read(next(name for name in names["wheel"] if name.endswith(".dist-info/METADATA"))).decode(),
    "sdist": archive.extractfile(next(name for name in names["sdist"] if name.endswith("/PKG-INFO"))).read().decode(),
}
for which, text in metadata.items():
    fields = text.split("\n\n")[0].splitlines()
    for field in ["License-Expression: MIT OR Apache-2.0", "License-File: licenses/LICENSE-APACHE", "License-File: licenses/LICENSE-MIT", "Requires-Python: >=3.11"]:
        assert field in fields, f"the {which} does not say {field}"
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "pinfeed/_pinfeed.pyi", "pinfeed/py.typed", "pinfeed/doctor.py"]:
        assert any(name.endswith(file) for name in names[which]), f"the {which} has no {file}"
END

# Nothing but what the limited interface has, and the module's own entry, is visible. (A dependency of the stores has functions for C, which cannot be
# left out. Python loads modules so that no other sees them.)
step "what the module exports"
exported=$(python3 - "$wheel" <<'END'
import subprocess, sys, tempfile, zipfile
with tempfile.TemporaryDirectory() as folder:
    archive = zipfile.ZipFile(sys.argv[1])
    name = next(name for name in archive.namelist() if name.endswith(".so"))
    path = archive.extract(name, folder)
    print(subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True).stdout)
END
)
grep -q PyInit__pinfeed <<<"$exported"
if grep -Ev 'PyInit__pinfeed| crc_fast_|^$' <<<"$exported"; then
    exit 1
fi

run "$plain" -m pip install --quiet --force-reinstall --no-deps "$wheel"
step "the tests, with NumPy alone"
(cd python/tests && "$plain" -m pytest --quiet -p no:cacheprovider --ignore=test_ray.py)
step "the types that the stubs say are there"
(cd "$here" && "$plain" -m mypy.stubtest pinfeed._pinfeed --allowlist "$OLDPWD/python/tests/stubtest.txt")
(cd "$here" && "$plain" -m mypy --strict --ignore-missing-imports --no-error-summary -p pinfeed)

# (Ray is 300 MB: half a minute to install, and as long to run.)
if run "$plain" -m pip install --quiet "ray[train]"; then
    step "two workers of Ray Train's"
    (cd python/tests && "$plain" -m pytest --quiet -p no:cacheprovider test_ray.py)
else
    skip "Ray Train, for PyPI has no Ray for this Python"
fi

free_threaded=
for name in ${PINFEED_FREE_THREADED:-python3.14t}; do
    if "$name" -c 'import sys, sysconfig, venv; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))' 2>/dev/null; then
        free_threaded=$name
        break
    fi
done
if [[ -z $free_threaded ]]; then
    skip "the wheel for a free-threaded Python: python3.14t is missing, and PINFEED_FREE_THREADED names none"
else
    run "$plain" -m maturin build --manifest-path python/Cargo.toml --interpreter "$free_threaded" --compression-level 9 --out "$wheels" "${features[@]}"
    own=$(echo "$wheels"/pinfeed-*-cp31[0-9]t-*.whl)
    small "$own"
    [[ -x $here/free/bin/python ]] || run "$free_threaded" -m venv "$here/free"
    run "$here/free/bin/python" -m pip install --quiet numpy pillow pytest safetensors
    run "$here/free/bin/python" -m pip install --quiet --force-reinstall --no-deps "$own"
    step "the tests, on a free-threaded Python"
    (cd python/tests && "$here/free/bin/python" -m pytest --quiet -p no:cacheprovider)
fi

with_torch=${PINFEED_PYTHON:-}
if [[ -z $with_torch && ${PINFEED_TORCH:-} == 1 ]]; then
    [[ -x $here/torch/bin/python ]] || run python3 -m venv "$here/torch"
    with_torch=$here/torch/bin/python
    run "$with_torch" -m pip install --quiet datasets numpy pillow pyarrow pytest safetensors torch torchvision
fi
if [[ -z $with_torch ]]; then
    skip "the comparisons with torch: PINFEED_TORCH=1 installs it, PINFEED_PYTHON names an interpreter that has it"
    exit 0
fi
# (The wheel is installed into a folder: the interpreter may not be ours to change.)
run "$plain" -m pip install --quiet --upgrade --no-deps --target "$here/site" "$wheel"
step "the tests, with torch"
(cd python/tests && PYTHONPATH=$here/site "$with_torch" -m pytest --quiet -p no:cacheprovider)
