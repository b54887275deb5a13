#!/usr/bin/env bash
# Everything that decodes pictures, with libjpeg-turbo. What it is built with is installed where it may be.
. "$(dirname "$0")/lib.sh"

jpeg_tools || skip_all "cmake or nasm are missing"
run cargo test --features turbojpeg,nvjpeg --lib -- image # what a device draws is compared with it
run cargo test --features turbojpeg --test images --test allocations
run cargo test --features turbojpeg,nvjpeg --test decoding
