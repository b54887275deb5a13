#!/usr/bin/env bash
# Rehearses a release, and uploads nothing: all crates in the order in which they go to crates.io, as `cargo publish` sees them, and Python's source
# archive. CONTRIBUTING.md says what the release itself takes. (ci/package.sh builds what was packed; so here it is not built again.)
. "$(dirname "$0")/lib.sh"

# Cargo knows the order, and has each stand in for the registry until it is there. (Rust 1.90 or newer.)
if ! cargo publish --help | grep -q -- --workspace; then
    skip_all "Rust 1.90 or newer is missing, whose cargo publishes several crates"
fi
step "pinfeed-derive, pinfeed, pinfeed-parquet"
run cargo publish --dry-run --no-verify --allow-dirty --package pinfeed-derive --package pinfeed --package pinfeed-parquet

# A workspace of its own: until pinfeed is on crates.io, Cargo finds it only where it is told to, and `cargo publish` refuses.
step "pinfeed-burn, when pinfeed is there"
run cargo package --no-verify --allow-dirty --manifest-path burn/Cargo.toml --target-dir "$(realpath -m "${CARGO_TARGET_DIR:-target}/burn")" \
    --config "patch.crates-io.pinfeed.path=\"$PWD\""

step "what the manifests say"
python3 - <<'END'
import pathlib, sys, tomllib
wrong = []
manifests = {name: tomllib.loads(pathlib.Path(name).read_text()) for name in ["derive/Cargo.toml", "Cargo.toml", "parquet/Cargo.toml", "burn/Cargo.toml"]}
version = manifests["Cargo.toml"]["package"]["version"]
for name, manifest in manifests.items():
    package, folder = manifest["package"], pathlib.Path(name).parent
    if package["version"] != version:
        wrong.append(f"{name} has the version {package['version']}, and Cargo.toml {version}")
    for field in ["description", "license", "readme", "repository", "rust-version"]:
        if field not in package:
            wrong.append(f"{name} has no {field}")
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"]:
        if (folder / licence).read_text() != pathlib.Path(licence).read_text():
            wrong.append(f"{folder / licence} is another one than {licence}")
    for dependency, what in manifest["dependencies"].items():
        if isinstance(what, dict) and "path" in what and what.get("version") != f"={version}":
            wrong.append(f"{name} depends on {dependency} of another version than {version}")
python = tomllib.loads(pathlib.Path("python/pyproject.toml").read_text())["project"]
if python["license"] != manifests["Cargo.toml"]["package"]["license"]:
    wrong.append("python/pyproject.toml has another licence than Cargo.toml")
for file in python["license-files"]:
    if (pathlib.Path("python") / file).read_text() != pathlib.Path(pathlib.Path(file).name).read_text():
        wrong.append(f"python/{file} is another one than {pathlib.Path(file).name}")
print("\n".join(wrong) or f"all are {version}, with licences")
sys.exit(bool(wrong))
END
if grep -rn "github.com/pinfeed/pinfeed" --include=Cargo.toml --include=pyproject.toml . --exclude-dir=target >/dev/null; then
    note "repository is the placeholder github.com/pinfeed/pinfeed: its owner sets it before the first release (CONTRIBUTING.md)"
fi
