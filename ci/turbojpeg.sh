#!/usr/bin/env bash
# Everything that decodes pictures, with libjpeg-turbo and with the device's decoder. What it is built with is installed where it may be.
. "$(dirname "$0")/lib.sh"

jpeg_tools || skip_all "cmake or nasm are missing"
test=(cargo test --features turbojpeg,nvjpeg) # what a device draws is compared with it
run "${test[@]}" --no-run --lib --test images --test allocations --test decoding --test programs
run "${test[@]}" --lib -- image picture changes nvjpeg encoded
run "${test[@]}" --test programs -- both_decoders found_on_the_web masked_on_the_device
run "${test[@]}" --test images --test allocations --test decoding
