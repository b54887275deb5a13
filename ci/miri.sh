#!/usr/bin/env bash
# Miri runs what can run without foreign functions: unit tests of plain code, and tests of the conformance suite on the
# CPU device, whose streams are threads: slabs, copies in flight, loans and the pin thread, with every access checked for
# data races, bounds and aliasing.
#
# Chosen are the tests that Miri gets through in a minute; it is some thousand times slower than the machine. Exposed
# addresses are allowed for, because device memory is addressed by number; leaks are, because some tests leak on purpose.
. "$(dirname "$0")/lib.sh"

install_nightly miri rust-src || skip_all "the toolchain $nightly with Miri could not be installed"
if ! run cargo "+$nightly" miri setup; then
    skip_all "Miri's standard library could not be built"
fi
export MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-isolation-error=hide -Zmiri-ignore-leaks"

run cargo "+$nightly" miri test --no-default-features --features dlpack --lib -- dataset dlpack error loader rng sync tensor
# Miri has no instructions but those that it is told of.
[[ $(uname -m) != x86_64 ]] ||
    RUSTFLAGS=-Ctarget-feature=+ssse3 run cargo "+$nightly" miri test --no-default-features --features image --lib -- pixels::mirror

tests=(
    a_custom_collate_is_pinned
    a_copy_at_hand_over_is_behind_the_last_write
    a_deleter_tells_no_stream_and_need_not
    a_few_rows_are_gathered
    a_guard_holds_sweeps_off
    a_forgotten_writer_is_waited_for
    a_held_budget_is_an_error_and_a_dropped_one_is_not
    a_read_behind_a_slow_kernel_sees_its_result
    a_shared_target_is_refused
    a_tensor_that_comes_back_waits_for_its_readers
    adrift_memory_is_free_behind_all_streams
    an_import_is_copied_and_let_go_once
    an_owned_loan_that_moves_leaves_an_event_behind
    an_owned_writer_is_waited_for_where_it_moves
    devices_and_streams_do_not_mix
    downloads_beyond_the_budget_are_pageable
    empty_tensors_travel
    fields_of_any_origin_travel_together
    one_copy_for_a_slab
    overlapping_views_become_tensors_of_their_own
    pinning_beyond_the_budget_is_refused
    processing_is_measured_on_the_consumers_stream
    registered_memory_is_pinned_where_it_lies
    strict_pinning_reports_what_others_hide
    tensors_outlive_their_device_handle
    the_last_of_several_exports_lets_go
)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run cargo "+$nightly" miri test --no-default-features --test conformance -- "${tests[@]/#/cpu::}" | tee "$log"
for test in "${tests[@]}"; do
    grep -q "^test cpu::$test \.\.\. ok" "$log" || { echo "there is no test cpu::$test any more" && exit 1; }
done

# Helper threads come from rayon, whose queues break the rules of stacked borrows, but not those of tree borrows.
staged=hostile::a_few_staged_pieces_come_back
MIRIFLAGS="$MIRIFLAGS -Zmiri-tree-borrows -Zmiri-num-cpus=3" \
    run cargo "+$nightly" miri test --no-default-features --test conformance -- "$staged" | tee "$log"
grep -q "^test $staged \.\.\. ok" "$log" || { echo "there is no test $staged any more" && exit 1; }
note "unit tests, and $((${#tests[@]} + 1)) tests of the conformance suite"
