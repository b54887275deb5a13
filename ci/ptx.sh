#!/usr/bin/env bash
# Each checked-in PTX file is what the source that its first line names becomes, byte for byte, by the nvcc named here;
# version and target are lowered for older drivers and devices, and ptxas still accepts it.
#
#     ci/ptx.sh --write       makes the files anew
. "$(dirname "$0")/lib.sh"

version=13.0.88
tools="${CARGO_TARGET_DIR:-$PWD/target}/tools/nvcc-$version"
command -v c++ >/dev/null || skip_all "nvcc preprocesses by a C++ compiler, and there is none"
if [[ ! -e $tools/ready ]]; then
    run python3 -m pip install --quiet --no-deps --upgrade --target "$tools" nvidia-cuda-nvcc==$version \
        nvidia-nvvm==$version nvidia-cuda-crt==$version nvidia-cuda-runtime==13.0.96 ||
        skip_all "nvcc $version could not be installed"
    touch "$tools/ready"
fi
cuda=$tools/nvidia/cu13

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mapfile -t files < <(git ls-files '*.ptx')
((${#files[@]})) || { echo "there is no PTX file any more" && exit 1; }
for file in "${files[@]}"; do
    step "$file"
    IFS= read -r first <"$file"
    pattern='^// Made from ([a-z_]+\.cu) by `nvcc -ptx([^`]*)`;'
    [[ $first =~ $pattern ]] || { echo "its first line names no source" && exit 1; }
    # shellcheck disable=SC2086 # these are several arguments
    "$cuda/bin/nvcc" -ptx -arch=compute_75 ${BASH_REMATCH[2]} -o "$made/ptx" "$(dirname "$file")/${BASH_REMATCH[1]}"
    {
        printf '%s\n\n' "$first"
        sed -n '/^\.version/,$p' "$made/ptx" | sed '1s/.*/.version 7.0/; 2s/.*/.target sm_70/'
    } >"$made/lowered"
    "$cuda/bin/ptxas" -arch=sm_75 -o /dev/null "$made/lowered"
    if [[ ${1:-} == --write ]]; then
        cp "$made/lowered" "$file"
    else
        diff "$file" "$made/lowered"
    fi
done
note "${#files[@]} files by nvcc $version"
