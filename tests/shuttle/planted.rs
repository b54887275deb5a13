//! Bugs that are planted in the library (`sync::planted`): a scenario must find each of them soon, and again by its seed.

use std::env;
use std::process::Command;

/// Runs a scenario in a process of its own, with a bug planted; returns what it printed, if it failed.
fn run(bug: &str, scenario: &str, variable: (&str, &str)) -> Option<String> {
    let output = Command::new(env::current_exe().unwrap())
        .args([scenario, "--exact", "--nocapture"])
        .env_remove("PINFEED_SEED")
        .env("PINFEED_PLANTED", bug)
        .env("PINFEED_SECONDS", "240")
        .env("RUST_BACKTRACE", "0")
        .envs([variable])
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(printed.contains("running 1 test"), "{scenario}: {printed}");
    (!output.status.success()).then_some(printed)
}

/// Nearly all are found within dozens of schedules, or hundreds. One takes 10,000 on average: in 20,000 it would be missed now and then.
const MOST_SCHEDULES: &str = "200000";

/// Asserts that a scenario finds a bug.
fn found(bug: &str, scenario: &str) {
    let printed = run(bug, scenario, ("PINFEED_SCHEDULES", MOST_SCHEDULES));
    let Some(printed) = printed else {
        panic!("{MOST_SCHEDULES} schedules of {scenario} do not find it: {bug}");
    };
    let line = printed.lines().find(|line| line.contains("PINFEED_SEED="));
    let line = line.unwrap_or_else(|| panic!("no seed is named: {printed}"));
    println!("{bug}: {line}");
    let (_, seed) = line.split_once("PINFEED_SEED=").unwrap();
    let (seed, _) = seed.split_once(' ').unwrap();
    let again = run(bug, scenario, ("PINFEED_SEED", seed));
    assert!(again.is_some(), "{bug}: seed {seed} does not repeat it");
}

/// What is planted here is no bug, but a system in need: where it starts no thread in the place of one that hangs, all batches
/// come, or their errors.
#[test]
fn no_threads_are_left() {
    for scenario in ["hanging::all_hang", "hanging::who_hangs_costs_a_batch"] {
        let in_need = "the system starts no more threads";
        let failed = run(in_need, scenario, ("PINFEED_SCHEDULES", "300"));
        assert_eq!(failed, None);
    }
}

macro_rules! planted {
    ($($name:ident: $bug:literal, $scenario:literal;)*) => {$(
        #[test]
        fn $name() {
            found($bug, $scenario);
        }
    )*};
}

planted! {
    passing: "a batch that passes is taken for the program's", "places::the_next_epoch_waits_for_a_batch_that_nobody_wants";
    unannounced: "a sample is got before it is announced", "staged::samples_are_announced_before_they_are_got";
    late_announcements: "a pass ends while it is announced", "staged::samples_are_announced_before_they_are_got";
    no_room: "a request that is waited for has no room", "staged::requests_are_made_ahead";
    lost_places: "a request that hangs keeps its place", "staged::requests_hang";
    lost_workers: "a worker waits for a request for ever", "staged::requests_hang";
    untold: "the thread that waits for a request is not told", "staged::requests_are_made_ahead";
    wrong_room: "room is given in the wrong order", "blocks::blocks_are_read_once";
    later_pass: "a later pass takes the room", "blocks::blocks_are_read_once";
    kept_block: "rows that were loaded keep their block", "blocks::blocks_are_read_once";
    early_end: "blocks are let go before the rows of slow workers", "blocks::blocks_are_read_once";
    silent_wait: "a worker waits before it says what it has loaded", "blocks::batches_are_larger_than_the_room";
    silent_reader: "a reader of shards ends in silence", "shards::shards_come_whole";
    lost_items: "items of a batch are lost where there are none for now", "shards::shards_come_whole";
    kept_room: "what is done with keeps its room", "blocks::blocks_are_read_once";
    still_failed: "a task that is made again stays failed", "failures::bad_samples_are_replaced_or_left_out";
    stale_slabs: "a task that is made again has a slab that it gave up", "failures::a_batch_is_made_again_while_its_slab_comes";
    tickets: "the ticket is taken when the wait begins", "loading::batches_come_in_order";
    interest: "interest does not count", "ahead::a_slab_is_filled_ahead";
    silence: "no news of a slab", "ahead::a_slab_is_filled_ahead";
    early_news: "news of a slab before it is home", "ahead::a_slab_is_filled_ahead";
    early_room: "bytes are given back before the block is", "pinning::a_slab_on_its_way_home_is_used_again";
    open_shares: "a share stays open", "loading::batches_come_in_order";
    unreserved_room: "no bytes are reserved", "pinning::who_keeps_batches_does_without";
    unreserved_bytes: "nothing is reserved in the budget", "pinning::little_memory_is_waited_for";
    pieces: "a piece is given out twice", "runs::a_batch_of_a_run_is_kept";
    lacking_runs: "a run without a slab is left none", "runs::slabs_for_runs_are_missing";
    no_limit: "no limit", "pinning::who_keeps_batches_does_without";
    twice_ahead: "what is made ahead is made again", "pinning::who_keeps_batches_does_without";
    surplus: "more blocks than shares", "loading::batches_are_sent_ahead";
    landing: "a look while copies let go", "pinning::others_look_after_copies";
    held_by_nobody: "a copy holds nothing", "loading::batches_go_there_and_back";
    lent_early: "device memory is lent before it is free", "loading::batches_go_there_and_back";
    never_adrift: "adrift memory is free at once", "adrift::adrift_memory_waits_for_all_streams";
    uncounted: "staged copies do not count", "pinning::staged_copies_take_slabs_too";
    late_entry: "a copy enters the list behind a later one", "copies::who_waited_for_a_copy_may_write";
    copy_silence: "no news of a copy", "ahead::a_slab_is_filled_ahead";
    dropped_under_lock: "what is left over is dropped under the lock", "dropping::samples_look_when_they_are_dropped";
    lone_claims: "a claim wakes no worker", "ahead::workers_load_together";
    held_work: "work is held beyond its report", "loading::batches_come_in_order";
    sent_silence: "a task that was sent wakes no worker", "ahead::batches_travel_while_the_program_is_busy";
    reserve_silence: "a reserve is given up in silence", "ahead::a_batch_that_fails_leaves_its_slab";
    failed_in_the_way: "a batch that failed stays in the way", "ahead::batches_travel_while_the_program_is_busy";
    quiet_lines: "a quiet session stays quiet when a worker has had it", "boundaries::epochs_may_be_taken_out_together";
    left_for_good: "a worker leaves what it made to a consumer that is away", "ahead::batches_travel_while_the_program_is_busy";
    consumer_silence: "the consumer is not told", "loading::batches_come_in_order";
    sent_twice: "a task can be taken while it is sent", "loading::batches_are_sent_ahead";
    room_silence: "room wakes no worker", "ahead::slabs_are_filled_ahead";
    block_silence: "the consumer blocks in silence", "pinning::who_keeps_batches_does_without";
    ask_silence: "a slab is asked for in silence", "pinning::little_memory_is_waited_for";
    move_silence: "a move is asked for in silence", "loading::collated_batches_are_pinned";
    grant_silence: "a slab is granted in silence", "ahead::slabs_are_filled_ahead";
    overtaking_epochs: "an epoch does not wait for the one before", "boundaries::a_boundary_takes_no_device_memory";
    beyond_depth: "batches are sent beyond depth", "loading::batches_are_sent_ahead";
    overtaking_batches: "batches begin in any order", "parts::parts_stop_where_the_memory_ends";
    together_early: "batches that go together do not wait for their turn", "runs::batches_of_runs_go_together";
    left_behind: "a thread that sends does not look at later batches", "ahead::batches_travel_while_the_program_is_busy";
    left_at_start: "what was ready before it may be sent stays", "ahead::batches_travel_while_the_program_is_busy";
    left_beyond: "a thread that sends does not look beyond the epoch", "ahead::batches_travel_while_the_program_is_busy";
    left_to_none: "what is left to a worker is sent by none", "ahead::batches_travel_while_the_program_is_busy";
    silent_ends: "the end of a stream is found in silence", "streams::batches_come_until_the_end";
    pulled_for_nobody: "a stream that no consumer waits for is pulled", "streams::streams_are_left_while_they_are_pulled";
    pulled_by_nobody: "a worker that was given up goes on pulling", "streams::who_is_given_up_pulls_no_more";
    later_silence: "a batch that is ready before its turn is no news", "any_order::a_slow_batch_is_the_last";
    kept_place: "a batch that was given out keeps its place", "any_order::a_slow_batch_is_the_last";
    uncounted_copies: "what was sent in any order is not counted", "any_order::a_slow_batch_is_the_last";
    unlimited_bytes: "any number of bytes is in flight", "bytes::never_more_than_the_limit_and_one_batch";
    no_last_resort: "a blocked consumer waits for room that does not come", "bytes::never_more_than_the_limit_and_one_batch";
    untold_outbox: "a transfer queue is not told of the end", "streams::batches_of_streams_travel_across_the_boundary";
    two_reports: "a worker that was given up reports", "hanging::who_hangs_comes_back";
    no_report: "no thread reports for a worker that was given up", "hanging::who_hangs_costs_a_batch";
    lost_run: "a run is lost with its worker", "hanging::runs_of_batches_hang";
    lost_place: "a worker that hangs is not replaced", "hanging::all_hang";
    counting_meters: "a meter is added up while others count with it", "seeing::epochs_are_counted_once";
    off_for_good: "no worker goes on duty again", "duty::workers_that_wait_for_each_other_are_found";
    silent_lines: "a session begins in silence", "duty::workers_that_wait_for_each_other_are_found";
    lost_wake_ups: "a worker that goes off duty wakes no other", "duty::those_on_duty_load_ahead";
    described_once: "a description that hangs is waited for", "hanging::who_hangs_costs_a_batch";
}
