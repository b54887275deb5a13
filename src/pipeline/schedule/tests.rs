//! The schedule alone: which claims it gives to which thread, at random and by hand. The threads around it are tested under a model checker
//! (`tests/shuttle`).

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::entry::SlabState;
use super::*;
use crate::pipeline::plan::delivered::Given;
use crate::pipeline::plan::epoch_plan::Solo;
use crate::pipeline::plan::epoch_plan::{Bound, Pulls};
use crate::pipeline::plan::partition::{Even, LastBatch, Partition};
use crate::tuning::{COPYING_BYTES_PER_10_NS, RUN_NS};

const WORKER: Claimant = Claimant {
    is_spare: false,
    devices: 1,
    free_bytes: usize::MAX,
    free_slabs: 0,
    beyond: true,
};
const SPARE: Claimant = Claimant {
    is_spare: true,
    devices: 1,
    ..WORKER
};
/// For tasks of the consumer's epoch only.
const OWN: Claimant = Claimant {
    beyond: false,
    ..WORKER
};

type TestSchedule = Schedule<(), ()>;

fn plan(samples: u64, batch_size: usize, window: usize) -> EpochPlan {
    plan_in_parts((samples, batch_size, 1), window)
}

fn plan_in_parts((samples, batch_size, parts): (u64, usize, usize), window: usize) -> EpochPlan {
    let partition = Even::whole(samples, batch_size, LastBatch::Partial);
    EpochPlan {
        partition: Partition::Even(partition.into_parts(parts)),
        window,
        slabs: usize::MAX,
        resident: None,
        slabs_per_task: 1,
        solo: None,
        more_slabs: 0,
        streamed_bytes: 0,
        copying: COPYING_BYTES_PER_10_NS,
        pulls: None,
        any_order: false,
        bound: None,
        given: Given::default(),
    }
}

/// A session of one epoch.
fn session(plan: EpochPlan) -> TestSchedule {
    let mut schedule = Schedule::new(None, 1);
    let first = schedule.append((), true);
    assert!(schedule.enter_plan(first, plan).is_some());
    schedule
}

fn claim(schedule: &mut TestSchedule, claimant: Claimant) -> Option<Claim> {
    let has_claim = schedule.has_claim(claimant);
    let claim = schedule.claim(claimant, |_, _, _| ());
    assert_eq!(claim.is_some(), has_claim);
    claim
}

fn rows(task: u64, rows: Range<usize>) -> Option<Claim> {
    let task = TaskId(task);
    let claimed = Claimed::Rows(rows);
    Some(Claim::Load { task, claimed })
}

fn all(claimed: usize) -> Loaded {
    Loaded {
        claimed,
        filled: claimed,
        parked: 0,
    }
}

/// Makes a task of one sample whose row is not claimed yet.
fn make(schedule: &mut TestSchedule, task: u64, sample_ns: u64) {
    assert_eq!(claim(schedule, OWN), rows(task, 0..1));
    let task = TaskId(task);
    schedule.want(task, 1);
    schedule.granted(task);
    assert_eq!(schedule.loaded(task, all(1), Some(sample_ns)), Next::Finish);
    schedule.ready(task);
}

/// What happens to each task in a random run: whether its samples are parked, and whether one of them fails.
#[derive(Debug, Clone, Copy)]
struct Fate {
    lays_out_late: bool,
    grants_late: bool,
    fails: bool,
    is_sent: bool,
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = any::<[bool; 4]>().prop_map(|[lays_out_late, grants_late, fails, is_sent]| Fate {
        lays_out_late,
        grants_late,
        fails: fails && lays_out_late,
        is_sent,
    });
    prop::collection::vec(fate, 64)
}

proptest! {
    /// In whatever order things are done, each row is claimed once, each task is laid out, finished and delivered once, in order or as it
    /// is ready, through all epochs, and there is always something to do or a report to wait for.
    #[test]
    fn every_order_of_steps_delivers_every_task(
        epochs in prop::collection::vec(0u64..12, 1..4),
        sizes in (1usize..5, 1usize..4, 1usize..5),
        fates in fates(),
        any_order: bool,
        given: u64,
        mut script in prop::collection::vec(any::<u16>(), 2_000),
    ) {
        let (batch_size, parts, window) = sizes;
        let plans: Vec<EpochPlan> = epochs.iter().map(|&samples| {
            let parts = if any_order { 1 } else { parts };
            EpochPlan { any_order, ..plan_in_parts((samples, batch_size, parts), window) }
        }).collect();
        let mut plans = plans;
        if parts == 1 || any_order {
            // The first is resumed.
            plans[0].given = Given::behind_first(given).of(plans[0].partition.batches());
        }
        let mut schedule = Schedule::new(None, 1);
        let mut ids = vec![schedule.append((), true)];
        let mut appended = 1;
        let mut current = 0;
        schedule.enter_plan(ids[0], plans[0].clone());
        // What was claimed, and is not reported on yet.
        let mut claims: Vec<Claim> = Vec::new();
        let mut wanted: Vec<TaskId> = Vec::new();
        let mut finishing: Vec<(TaskId, Next)> = Vec::new();
        let mut loaded: BTreeMap<u64, usize> = BTreeMap::new();
        let (mut delivered, mut begins) = (0, 0);
        let mut numbers = Vec::new();
        let fate = |task: TaskId| fates[task.0 as usize % fates.len()];
        loop {
            let step = script.pop().unwrap_or(0);
            let index = usize::from(step / 8);
            // The next epoch is appended early.
            if appended <= current + 1 && appended < plans.len() {
                ids.push(schedule.append((), false));
                appended += 1;
            }
            match step % 8 {
                0..=2 => {
                    let claim = claim(&mut schedule, WORKER);
                    if let Some(Claim::Load { task, claimed: Claimed::Rows(rows) }) = &claim {
                        let seen = loaded.entry(task.0).or_default();
                        prop_assert_eq!(*seen, rows.start);
                        *seen = rows.end;
                    }
                    claims.extend(claim);
                }
                3 if !claims.is_empty() => {
                    let number = index % claims.len();
                    match claims.swap_remove(number) {
                        Claim::Plan { epoch_entry } => {
                            let place = ids.iter().position(|id| *id == epoch_entry).unwrap();
                            schedule.enter_plan(epoch_entry, plans[place].clone());
                        }
                        Claim::Load { task, claimed: Claimed::Rows(rows) } => {
                            let fate = fate(task);
                            if rows.start == 0 && !fate.lays_out_late {
                                let is_granted = !fate.grants_late;
                                schedule.want(task, 1);
                                match is_granted {
                                    true => schedule.granted(task),
                                    false => wanted.push(task),
                                }
                            }
                            let is_granted = schedule.tasks.entry(task).slab == SlabState::Granted;
                            let claimed = rows.len();
                            let (filled, parked) = if is_granted { (claimed, 0) } else { (0, claimed) };
                            let failed = usize::from(fate.fails && rows.start == 0);
                            let report = Loaded { claimed, filled, parked: parked.saturating_sub(failed) };
                            finishing.push((task, schedule.loaded(task, report, Some(1_000_000))));
                        }
                        Claim::Load { task, claimed: Claimed::Parked(count) } => {
                            finishing.push((task, schedule.loaded(task, all(count), Some(1_000_000))));
                        }
                        Claim::Finish { task } => finishing.push((task, Next::Finish)),
                        Claim::Solo { .. } | Claim::Pull { .. } | Claim::Grant { .. } => {
                            unreachable!("these plans have none")
                        }
                    }
                }
                4 if !finishing.is_empty() => {
                    let number = index % finishing.len();
                    let (task, next) = finishing.swap_remove(number);
                    match next {
                        Next::Wait => {}
                        Next::LayOut => {
                            schedule.want(task, 1);
                            wanted.push(task);
                            finishing.push((task, schedule.laid_out(task)));
                        }
                        Next::Finish if fate(task).is_sent => schedule.sent(task),
                        Next::Finish | Next::Fail => schedule.ready(task),
                    }
                }
                5 if !wanted.is_empty() => {
                    if let Some(want) = schedule.next_want() {
                        wanted.retain(|task| *task != want.task);
                        assert_eq!(schedule.granting(want.task), Some(want));
                        schedule.granted(want.task);
                    }
                }
                6 | 7 => {
                    schedule.used_up();
                    let tasks = schedule.epochs[0].tasks.clone();
                    match schedule.deliverable() {
                        _ if any_order && schedule.remaining() != Some(0) => {
                            let came = schedule.deliver_any();
                            for (task, ()) in &came {
                                prop_assert!(!schedule.holds(*task));
                                numbers.push((current, tasks.as_ref().unwrap().number(*task)));
                            }
                            delivered += came.len() as u64;
                            if came.is_empty() {
                                schedule.block();
                            }
                        }
                        0 if schedule.remaining() == Some(0) => {
                            if current + 1 == plans.len() {
                                break;
                            }
                            // No task of it came after one of the next.
                            begins += plans[current].tasks();
                            prop_assert_eq!(delivered, begins);
                            current += 1;
                            let mut removed = Removed::default();
                            prop_assert!(schedule.come_to(ids[current], &mut removed));
                            prop_assert_eq!(removed.epochs.len(), 1);
                            schedule.enter_plan(ids[current], plans[current].clone());
                        }
                        0 => schedule.block(),
                        count => {
                            prop_assert_eq!(schedule.first(), TaskId(delivered));
                            let tasks = tasks.unwrap();
                            let own = (delivered..).take(count).map(TaskId);
                            numbers.extend(own.map(|task| (current, tasks.number(task))));
                            delivered += schedule.deliver(count).count() as u64;
                        }
                    }
                }
                _ => {}
            }
            prop_assert!(schedule.tasks.ahead() <= window + 1);
            if script.is_empty() {
                script = (0..2_000).map(|step: u16| step.wrapping_mul(40_503)).collect();
                prop_assert!(delivered < 1_000);
            }
        }
        let tasks: u64 = plans.iter().map(|plan| plan.tasks()).sum();
        prop_assert_eq!(delivered, tasks);
        // Each number once: those that were given before are left out.
        numbers.sort_unstable();
        let before = |epoch: usize| plans[epoch].given.batches_behind().collect::<Vec<_>>();
        let expected = (0..plans.len()).flat_map(|epoch| {
            let all = 0..plans[epoch].partition.tasks();
            all.filter(move |number| !before(epoch).contains(number)).map(move |number| (epoch, number))
        });
        prop_assert_eq!(numbers, expected.collect::<Vec<_>>());
        // (The consumer may have been there first to plan an epoch.)
        claims.retain(|claim| !matches!(claim, Claim::Plan { .. }));
        prop_assert!(claims.is_empty() && wanted.is_empty());
    }
}

#[test]
fn a_task_is_opened_only_within_the_window() {
    let mut schedule = session(plan(10, 2, 3));
    for task in 0..3 {
        assert_eq!(claim(&mut schedule, WORKER), rows(task, 0..1));
        assert_eq!(claim(&mut schedule, WORKER), rows(task, 1..2));
    }
    assert_eq!(claim(&mut schedule, WORKER), None);
}

/// With every task that the consumer takes, another is opened: `prefetch` are ahead, and not half of them, unless making a
/// task takes no time at all.
#[test]
fn the_window_is_full_after_each_task() {
    for (task_ns, at_once) in [(10_000_000, 1), (10_000, 4)] {
        let mut schedule = session(plan(100, 1, 8));
        (0..8).for_each(|task| make(&mut schedule, task, task_ns));
        assert_eq!(claim(&mut schedule, WORKER), None);
        assert_eq!(schedule.deliverable(), at_once);
        assert_eq!(schedule.deliver(at_once).count(), at_once);
        assert!(claim(&mut schedule, WORKER).is_some());
        assert_eq!(schedule.tasks.ahead(), 8);
    }
}

/// Tasks that were sent are taken all at once. One that was not sent is taken when the consumer comes to it, so that it can still be sent
/// meanwhile, and be out of the window.
#[test]
fn what_was_sent_is_taken_at_once() {
    let mut schedule = session(plan(100, 1, 4));
    for (task, is_sent) in [true, true, false, true, false, false]
        .into_iter()
        .enumerate()
    {
        make(&mut schedule, task as u64, 10_000_000);
        if is_sent {
            schedule.sent(TaskId(task as u64));
        }
    }
    assert_eq!(schedule.deliverable(), 2);
    assert_eq!(schedule.deliver(2).count(), 2);
    let left = (schedule.deliverable(), schedule.tasks.ahead());
    assert_eq!(left, (2, 3), "three are open that were not sent");
    assert_eq!(schedule.deliver(2).count(), 2);
    assert_eq!((schedule.deliverable(), schedule.tasks.ahead()), (1, 2));
}

/// Samples are parked until all are there, filled in by any worker that is free, and the task is finished once.
#[test]
fn parked_samples_are_claimed_like_rows() {
    let mut schedule = session(plan(3, 3, 1));
    let task = TaskId(0);
    let parked = Loaded {
        claimed: 1,
        filled: 0,
        parked: 1,
    };
    for row in 0..3 {
        assert_eq!(claim(&mut schedule, WORKER), rows(0, row..row + 1));
    }
    assert_eq!(schedule.loaded(task, parked, Some(1_000_000)), Next::Wait);
    assert_eq!(schedule.loaded(task, parked, Some(1_000_000)), Next::Wait);
    assert_eq!(schedule.loaded(task, parked, Some(1_000_000)), Next::LayOut);
    schedule.want(task, 10);
    assert_eq!(claim(&mut schedule, WORKER), None, "the slab is missing");
    schedule.granted(task);
    assert_eq!(schedule.laid_out(task), Next::Wait);
    let claimed = Claimed::Parked(1);
    let some = Some(Claim::Load { task, claimed });
    for _ in 0..3 {
        assert_eq!(claim(&mut schedule, WORKER), some);
    }
    assert_eq!(claim(&mut schedule, WORKER), None);
    assert_eq!(schedule.loaded(task, all(1), Some(1_000_000)), Next::Wait);
    assert_eq!(schedule.loaded(task, all(1), Some(1_000_000)), Next::Wait);
    assert_eq!(schedule.loaded(task, all(1), Some(1_000_000)), Next::Finish);
}

/// The last worker that is at a failed task delivers its error: rows that were not claimed are given up.
#[test]
fn a_failed_task_waits_for_those_who_are_at_it() {
    let mut schedule = session(plan(4, 4, 1));
    let task = TaskId(0);
    assert_eq!(claim(&mut schedule, WORKER), rows(0, 0..1));
    assert_eq!(claim(&mut schedule, WORKER), rows(0, 1..2));
    let failed = Loaded {
        claimed: 1,
        filled: 0,
        parked: 0,
    };
    assert_eq!(schedule.loaded(task, failed, Some(1_000)), Next::Wait);
    assert_eq!(claim(&mut schedule, WORKER), None);
    assert_eq!(schedule.loaded(task, all(1), Some(1_000)), Next::Fail);
    schedule.ready(task);
    assert_eq!(schedule.deliverable(), 1);
}

/// A task may fail and be made again while the ring is asked for its slab. What comes of that request is not for the new attempt.
#[test]
fn a_task_that_is_made_again_wants_another_slab() {
    type Late = fn(&mut TestSchedule, TaskId);
    let late: [Late; 4] = [
        |schedule, task| assert_eq!(schedule.refused(task), Next::Wait),
        TestSchedule::granted,
        TestSchedule::granted_pageable,
        TestSchedule::not_granted,
    ];
    for late in late {
        for when in 0..2 {
            let mut schedule = session(plan(2, 2, 1));
            let task = TaskId(0);
            assert_eq!(claim(&mut schedule, WORKER), rows(0, 0..1));
            assert_eq!(claim(&mut schedule, WORKER), rows(0, 1..2));
            schedule.want(task, 10);
            assert!(schedule.granting(task).is_some());
            let report = |parked| Loaded {
                claimed: 1,
                filled: 0,
                parked,
            };
            assert_eq!(schedule.loaded(task, report(1), None), Next::Wait);
            assert_eq!(schedule.loaded(task, report(0), None), Next::Fail);
            schedule.remaking(task);
            if when == 0 {
                late(&mut schedule, task);
            }
            schedule.want_to_move(task, 20);
            if when == 1 {
                late(&mut schedule, task);
            }
            let want = schedule.next_want().map(|want| (want.task, want.bytes));
            assert_eq!(want, Some((task, 20)));
        }
    }
}

/// Two epochs that follow each other are one session: with no more ahead, and no more slabs, than one has.
#[test]
fn an_epoch_that_follows_takes_what_the_first_leaves() {
    let mut schedule = session(plan(4, 2, 3));
    let next = schedule.append((), false);
    assert_eq!(claim(&mut schedule, OWN), rows(0, 0..1));
    // Both tasks may be opened: it is time to plan.
    assert_eq!(claim(&mut schedule, WORKER), rows(0, 1..2));
    assert_eq!(
        claim(&mut schedule, WORKER),
        Some(Claim::Plan { epoch_entry: next })
    );
    assert!(schedule.enter_plan(next, plan(4, 2, 3)).is_some());
    for row in [0..1, 1..2] {
        assert_eq!(claim(&mut schedule, OWN), rows(1, row));
    }
    assert_eq!(claim(&mut schedule, OWN), None, "that is beyond");
    for row in [0..1, 1..2] {
        assert_eq!(claim(&mut schedule, WORKER), rows(2, row));
    }
    assert_eq!(claim(&mut schedule, WORKER), None, "three are open");
    schedule.want(TaskId(2), 1);
    assert_eq!(schedule.next_want().map(|want| want.reserve), Some(2));
    schedule.want(TaskId(0), 1);
    schedule.granted(TaskId(0));
    assert_eq!(schedule.next_want().map(|want| want.reserve), Some(1));
    // One is delivered: there is room for another.
    schedule.ready(TaskId(0));
    assert_eq!(schedule.deliver(1).count(), 1);
    assert_eq!(claim(&mut schedule, WORKER), rows(3, 0..1));
}

/// An epoch that is left in the middle takes its tasks with it, and none of the next one's.
#[test]
fn an_epoch_is_left_alone() {
    let mut schedule = session(plan(2, 1, 4));
    let next = schedule.append((), false);
    (0..2).for_each(|task| make(&mut schedule, task, 1_000_000));
    assert_eq!(
        claim(&mut schedule, WORKER),
        Some(Claim::Plan { epoch_entry: next })
    );
    schedule.enter_plan(next, plan(2, 1, 4));
    assert_eq!(claim(&mut schedule, WORKER), rows(2, 0..1));
    let mut removed = Removed::default();
    schedule.leave(0, &mut removed);
    assert_eq!(
        (removed.epochs.len(), removed.tasks.len(), schedule.first()),
        (1, 2, TaskId(2))
    );
    assert!(schedule.holds(TaskId(2)) && !schedule.holds(TaskId(1)));
    assert!(schedule.come_to(next, &mut removed));
    assert_eq!(schedule.remaining(), Some(2));

    // And an epoch that the consumer does not come to is removed alone.
    let mut schedule = session(plan(2, 1, 4));
    let next = schedule.append((), false);
    schedule.enter_plan(next, plan(2, 1, 4));
    (0..3).for_each(|task| assert_eq!(claim(&mut schedule, WORKER), rows(task, 0..1)));
    let mut removed = Removed::default();
    schedule.truncate(&mut removed);
    assert_eq!((removed.epochs.len(), removed.tasks.len()), (1, 1));
    assert!(schedule.holds(TaskId(1)) && !schedule.holds(TaskId(2)));
    assert_eq!(claim(&mut schedule, WORKER), None);
}

/// Epochs may have all numbers there are: behind them nothing is found, and a worker that was at one of them comes too late.
#[test]
fn behind_the_last_number_nothing_is_found() {
    let mut schedule = session(plan(u64::MAX - 1, 1, 4));
    schedule.append((), false);
    schedule.has_bytes(8);
    make(&mut schedule, 0, 1_000);
    schedule.leave(0, &mut Removed::default());
    assert_eq!(schedule.first(), TaskId(u64::MAX - 1));
    for first in [u64::MAX - 1, u64::MAX] {
        schedule.tasks.first = TaskId(first);
        assert_eq!(schedule.ready_tasks().count(), 0);
        assert_eq!(schedule.next_held(WORKER), None);
        schedule.no_run_slab(u64::MAX - 3..u64::MAX - 1);
    }
}

/// An epoch whose tasks are made in another way waits until the one before is used up.
#[test]
fn plans_that_do_not_join_wait_for_the_boundary() {
    let mut schedule = session(plan(8, 4, 4));
    let next = schedule.append((), false);
    let partition = plan_in_parts((8, 4, 2), 4);
    assert_eq!(schedule.enter_plan(next, partition), None);
    let mut removed = Removed::default();
    assert!(
        !schedule.come_to(next, &mut removed),
        "two tasks are to come"
    );
}

#[test]
fn an_epoch_is_planned_when_the_rest_may_be_opened() {
    let mut schedule = session(plan(5, 1, 2));
    schedule.append((), false);
    let mut is_time = Vec::new();
    for task in 0..5 {
        make(&mut schedule, task, 1_000_000);
        is_time.push(schedule.epoch_entry_to_plan().is_some());
        assert_eq!(schedule.deliver(1).count(), 1);
    }
    // With two open, one may be opened when the next is delivered: the last of five.
    assert_eq!(is_time, [false, false, true, true, true]);
}

/// Where loading is copying, spare workers stay out of it; where samples are computed they join in, however large.
#[test]
fn spare_workers_do_not_copy() {
    for (elapsed_ns, may_load) in [(100_000, false), (1_000_000, true)] {
        let mut schedule = session(plan(100, 10, 2));
        let task = TaskId(0);
        assert_eq!(claim(&mut schedule, WORKER), rows(0, 0..1));
        schedule.want(task, 6_000_000);
        schedule.streams(task, 6_000_000);
        schedule.granted(task);
        assert!(claim(&mut schedule, SPARE).is_none(), "nobody knows yet");
        schedule.loaded(task, all(1), Some(elapsed_ns));
        assert_eq!(claim(&mut schedule, SPARE).is_some(), may_load);
        assert!(claim(&mut schedule, WORKER).is_some());
    }
}

/// Filling in samples that were parked is copying, too.
#[test]
fn spare_workers_fill_in_nothing_that_was_parked() {
    let mut schedule = session(plan(100, 10, 2));
    let task = TaskId(0);
    assert_eq!(claim(&mut schedule, WORKER), rows(0, 0..1));
    schedule.want(task, 6_000_000);
    schedule.streams(task, 6_000_000);
    let parked = Loaded {
        claimed: 1,
        filled: 0,
        parked: 1,
    };
    schedule.loaded(task, parked, Some(100_000));
    schedule.granted(task);
    assert!(!schedule.has_claim(SPARE));
    assert!(claim(&mut schedule, SPARE).is_none());
    assert!(schedule.has_claim(WORKER));
    assert_eq!(
        claim(&mut schedule, WORKER),
        Some(Claim::Load {
            task,
            claimed: Claimed::Parked(1)
        })
    );
}

/// The more devices workers load for, the less often each of them takes the lock.
#[test]
fn runs_are_longer_for_several_devices() {
    let mut schedule = session(plan(10_000, 10_000, 1));
    let mut run = |devices| {
        let worker = Claimant { devices, ..WORKER };
        match claim(&mut schedule, worker) {
            Some(Claim::Load {
                task,
                claimed: Claimed::Rows(rows),
            }) => {
                schedule.loaded(task, all(rows.len()), Some(1_000 * rows.len() as u64));
                rows.len()
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([run(1), run(1), run(2), run(8)], [1, 100, 300, 1_200]);
}

/// A fast data set is claimed in long runs, a slow one sample by sample.
#[test]
fn runs_follow_the_time_of_a_sample() {
    let mut schedule = session(plan(10_000, 10_000, 1));
    let mut run = |elapsed_ns| match claim(&mut schedule, WORKER) {
        Some(Claim::Load {
            task,
            claimed: Claimed::Rows(rows),
        }) => {
            let elapsed_ns = elapsed_ns * rows.len() as u64;
            schedule.loaded(task, all(rows.len()), Some(elapsed_ns));
            rows.len()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(run(1_000), 1);
    assert_eq!(run(1_000), 100);
    for _ in 0..20 {
        run(RUN_NS);
    }
    assert_eq!(run(RUN_NS), 1);
}

/// Tasks that are made in microseconds are claimed several at once, by one worker each, up to the epoch's end.
#[test]
fn tiny_tasks_are_made_alone() {
    let tiny = EpochPlan {
        solo: Some(Solo {
            workers: 2,
            grows: true,
            is_pinned: false,
        }),
        ..plan(90, 1, 2)
    };
    let mut schedule = session(tiny);
    assert_eq!(
        claim(&mut schedule, WORKER),
        rows(0, 0..1),
        "nobody knows yet"
    );
    let task = TaskId(0);
    schedule.want(task, 1);
    schedule.granted(task);
    assert_eq!(schedule.loaded(task, all(1), Some(1_000)), Next::Finish);
    schedule.ready(task);
    assert!(schedule.is_tiny());
    let Some(Claim::Solo { tasks }) = claim(&mut schedule, WORKER) else {
        panic!("it is claimed alone");
    };
    assert_eq!(tasks, 1..17);
    tasks
        .clone()
        .for_each(|task| schedule.made(TaskId(task), Some(1_000)));
    assert_eq!(schedule.deliverable(), 17);
    // Samples that take longer come later.
    let Some(Claim::Solo { tasks }) = claim(&mut schedule, WORKER) else {
        panic!("it is claimed alone");
    };
    tasks.for_each(|task| schedule.made(TaskId(task), Some(10 * RUN_NS)));
    assert!(!schedule.is_tiny());
}

/// Page-locked tasks that are made in microseconds are claimed as a run if a slab is left for it, and otherwise like all others.
#[test]
fn tiny_tasks_share_slabs() {
    const BYTES: usize = 1_000;
    let tiny = |grows| EpochPlan {
        solo: Some(Solo {
            workers: 2,
            grows,
            is_pinned: true,
        }),
        ..plan(90, 1, 2)
    };
    let begun = |grows| {
        let mut schedule = session(tiny(grows));
        assert_eq!(claim(&mut schedule, WORKER), rows(0, 0..1));
        schedule.want(TaskId(0), BYTES);
        assert!(schedule.granting(TaskId(0)).is_some());
        schedule.granted(TaskId(0));
        assert_eq!(
            schedule.loaded(TaskId(0), all(1), Some(1_000)),
            Next::Finish
        );
        schedule.ready(TaskId(0));
        schedule
    };
    let with = |free_slabs| Claimant {
        free_slabs,
        ..WORKER
    };
    let solo = |tasks| Some(Claim::Solo { tasks });

    let mut schedule = begun(true);
    assert_eq!(claim(&mut schedule, with(1)), solo(1..17));
    let slab = schedule.run_slab(&(1..17));
    assert_eq!(slab.uncounted, 0);
    assert_eq!(schedule.reserve_before_run(&(1..17)), 0);
    assert_eq!(slab.bytes, 16 * BYTES.next_multiple_of(256));
    // Until its first task is made, there may be no slab for it, and then each of its tasks needs one. The quota has counted it.
    assert_eq!(claim(&mut schedule, with(1)), solo(17..33));
    let second = schedule.run_slab(&(17..33));
    assert_eq!(second.uncounted, 0);
    assert_eq!(schedule.reserve_before_run(&(17..33)), 16);
    // Without slabs, there are no more tasks ahead than without runs.
    assert_eq!(claim(&mut schedule, with(0)), None);
    assert_eq!(schedule.deliver(1).count(), 1);
    (1..17).for_each(|task| schedule.made(TaskId(task), Some(1_000)));
    assert_eq!(schedule.deliver(16).count(), 16);
    // A short run would leave its slab half empty.
    assert_eq!(claim(&mut schedule, with(1)), solo(33..49));
    assert_eq!(claim(&mut schedule, with(1)), solo(49..65));
    let room = schedule.window(&tiny(true)).room(schedule.tasks.ahead());
    assert!((1..16).contains(&room), "{room}");
    assert_eq!(claim(&mut schedule, with(1)), None);

    // There was no slab for the second run: each of its tasks may need one, and the tasks after it are made without runs.
    schedule.no_run_slab(17..33);
    assert_eq!(schedule.run_slab(&(33..49)).uncounted, 16);
    assert_eq!(schedule.reserve_before_run(&(33..49)), 16);
    (17..65).for_each(|task| schedule.made(TaskId(task), Some(1_000)));
    assert_eq!(schedule.deliver(1).count(), 1);
    assert_eq!(claim(&mut schedule, with(9)), None);
    while schedule.deliverable() > 0 {
        let _ = schedule.deliver(1).count();
    }
    schedule.used_up();
    assert_eq!(claim(&mut schedule, with(9)), rows(65, 0..1));
    // The next run is half as long: its slab may be smaller.
    for task in (65..81).map(TaskId) {
        if task.0 > 65 {
            assert_eq!(claim(&mut schedule, with(9)), rows(task.0, 0..1));
        }
        schedule.want(task, BYTES);
        assert!(schedule.granting(task).is_some());
        schedule.granted(task);
        assert_eq!(schedule.loaded(task, all(1), Some(1_000)), Next::Finish);
        schedule.ready(task);
        assert_eq!(schedule.deliver(1).count(), 1);
        schedule.used_up();
    }
    assert_eq!(claim(&mut schedule, with(9)), solo(81..89));

    // However many slabs there are, together they are not larger.
    let far = EpochPlan {
        window: 1_000,
        slabs: 1_003,
        ..tiny(false)
    };
    let mut schedule = session(far);
    schedule.pace.task_bytes = BYTES;
    schedule.pace.sample_ns = 100;
    assert_eq!(claim(&mut schedule, with(1_000)), solo(0..4));
    assert!(schedule.run_slab(&(0..4)).most_bytes * 1_003 < 5 << 20);

    // With `prefetch` set, there are no more ahead; and a task that waits for a slab gets the next one.
    let mut schedule = begun(false);
    assert_eq!(claim(&mut schedule, with(1)), solo(1..2));
    assert_eq!(claim(&mut schedule, with(1)), None);
    let mut schedule = begun(true);
    assert_eq!(claim(&mut schedule, with(0)), rows(1, 0..1));
    schedule.want(TaskId(1), BYTES);
    assert_eq!(claim(&mut schedule, with(9)), None);
}

/// Page-locked tasks that take longer than waking a worker, but are small, are made by one worker each if that keeps all of them busy.
#[test]
fn small_tasks_are_made_whole() {
    let of = |grows, ns, bytes| {
        let plan = EpochPlan {
            solo: Some(Solo {
                workers: 8,
                grows,
                is_pinned: true,
            }),
            ..plan(100 * 1024, 1024, 2)
        };
        let mut schedule = session(plan);
        schedule.pace.sample_ns = ns;
        schedule.pace.task_bytes = bytes;
        let worker = Claimant {
            free_slabs: 35,
            ..WORKER
        };
        let mut runs = Vec::new();
        while let Some(Claim::Solo { tasks }) = claim(&mut schedule, worker) {
            schedule.run_slab(&tasks);
            runs.push(tasks);
        }
        runs
    };
    // Each of eight workers makes one, or four that share a slab, and the next may begin.
    let runs = of(true, 150, 84 << 10);
    assert_eq!(runs.len(), 32, "{runs:?}");
    let runs = of(true, 40, 84 << 10);
    assert_eq!((runs.len(), runs[0].clone()), (16, 0..4));
    // Four need a slab of 512 KiB at most; larger ones have one each.
    let runs = of(true, 40, 128 << 10);
    assert_eq!((runs.len(), runs[0].clone()), (16, 0..4));
    let runs = of(true, 40, 140 << 10);
    assert_eq!((runs.len(), runs[0].clone()), (16, 0..1));
    let runs = of(true, 150, 200 << 10);
    assert_eq!(runs.len(), 16, "{runs:?}");
    // Workers share tasks that take long or are large, and all tasks where few may be ahead.
    assert_eq!(of(true, 500, 84 << 10), []);
    assert_eq!(of(true, 150, 300 << 10), []);
    assert_eq!(of(false, 150, 84 << 10), []);
}

/// A session of streams of batches of two.
fn streams(before_loading: bool, count: usize) -> TestSchedule {
    let plan = EpochPlan {
        pulls: Some(Pulls { before_loading }),
        ..plan(1 << 62, 2, 2)
    };
    let mut schedule = Schedule::new(None, 1);
    let ids: Vec<u64> = (0..count)
        .map(|number| schedule.append((), number == 0))
        .collect();
    assert!(schedule.enter_plan(ids[0], plan).is_some());
    schedule
}

fn pull(task: u64) -> Option<Claim> {
    Some(Claim::Pull { task: TaskId(task) })
}

/// One worker pulls at a time. With others, it pulls while there is room; alone, it loads first what was pulled.
#[test]
fn items_are_pulled_one_task_at_a_time() {
    for before_loading in [false, true] {
        let mut schedule = streams(before_loading, 1);
        assert_eq!(claim(&mut schedule, WORKER), pull(0));
        assert_eq!(claim(&mut schedule, WORKER), None, "somebody pulls");
        schedule.pulled(TaskId(0), 2);
        let next = claim(&mut schedule, WORKER);
        match before_loading {
            true => assert_eq!(next, pull(1)),
            false => assert_eq!(next, rows(0, 0..1)),
        }
        // The other one does the rest; then the window is full.
        while let Some(claimed) = claim(&mut schedule, WORKER) {
            assert!(
                matches!(claimed, Claim::Load { .. })
                    != (claimed == Claim::Pull { task: TaskId(1) })
            );
        }
        assert_eq!(schedule.tasks.end(), TaskId(2));
    }
}

/// The end of a stream is found by the next pull: the task is gone again, and the next epoch goes on with its number.
#[test]
fn a_stream_ends_where_nothing_is_left_to_pull() {
    let mut schedule = streams(true, 2);
    let mut removed = Removed::default();
    assert_eq!(claim(&mut schedule, WORKER), pull(0));
    schedule.pulled(TaskId(0), 2);
    assert_eq!(claim(&mut schedule, WORKER), pull(1));
    let next = schedule.epochs[1].id;
    let early = schedule.epochs[0].tasks.clone().unwrap().plan;
    assert_eq!(
        schedule.enter_plan(next, early.clone()),
        None,
        "nobody knows where it begins"
    );
    assert_eq!(
        (
            schedule.tasks_of(0),
            schedule.remaining().is_some_and(|left| left > 0)
        ),
        (None, true)
    );
    assert_eq!(
        schedule.close_end_before(TaskId(1), 0, &mut removed),
        Some(1)
    );
    assert_eq!((removed.tasks.len(), schedule.remaining()), (1, Some(1)));
    assert_eq!(
        schedule.close_end_before(TaskId(1), 0, &mut removed),
        None,
        "once"
    );
    // Now the next one is planned.
    let plans = Claim::Plan { epoch_entry: next };
    assert!(std::iter::from_fn(|| claim(&mut schedule, WORKER)).any(|claim| claim == plans));
    let tasks = schedule.enter_plan(next, early).unwrap();
    assert_eq!(tasks.first, TaskId(1));
    assert_eq!(claim(&mut schedule, WORKER), pull(1));
}

/// When the consumer leaves an epoch of a stream, the tasks that were opened of it are gone, and the next epoch begins behind them.
#[test]
fn a_stream_that_is_left_ends_there() {
    let mut schedule = streams(true, 2);
    let mut removed = Removed::default();
    assert_eq!(claim(&mut schedule, WORKER), pull(0));
    schedule.pulled(TaskId(0), 2);
    assert_eq!(claim(&mut schedule, WORKER), pull(1));
    let plan = schedule.epochs[0].tasks.clone().unwrap().plan;
    assert_eq!(schedule.close_end(0), Some(2));
    assert_eq!(schedule.enter_plan(1, plan).unwrap().first, TaskId(2));
    schedule.leave(0, &mut removed);
    assert!(!schedule.holds(TaskId(1)), "who pulls finds that out");
    assert!(schedule.come_to(1, &mut removed));
    assert_eq!(claim(&mut schedule, OWN), pull(2));
}

/// Where bytes are limited: nothing is known before the first task's size, and then as many are open as there is room for; one that turns
/// out larger waits for its memory, unless the consumer is blocked on it.
#[test]
fn tasks_wait_for_room() {
    const PAGE: usize = 1 << 12;
    let bound = Some(Bound {
        bytes: 100 * PAGE,
        row_bytes: None,
    });
    let mut schedule = session(EpochPlan {
        bound,
        ..plan(9, 1, 9)
    });
    let with = |free_bytes| Claimant {
        free_bytes,
        ..WORKER
    };
    assert_eq!(claim(&mut schedule, WORKER), rows(0, 0..1));
    assert_eq!(claim(&mut schedule, WORKER), None);
    assert!(schedule.want_pageable(TaskId(0), 40 * PAGE, 100 * PAGE));
    // Two of 40 pages, and no third.
    assert_eq!(claim(&mut schedule, WORKER), rows(1, 0..1));
    assert_eq!(claim(&mut schedule, WORKER), None);
    assert!(!schedule.want_pageable(TaskId(1), 70 * PAGE, 60 * PAGE));
    assert_eq!(claim(&mut schedule, with(60 * PAGE)), None);
    let (task, bytes) = (TaskId(1), 70 * PAGE);
    assert_eq!(
        claim(&mut schedule, with(70 * PAGE)),
        Some(Claim::Grant { task, bytes })
    );
    schedule.tasks.entry(task).slab = SlabState::Held { bytes };
    // The consumer comes to it.
    schedule.granted_pageable(TaskId(0));
    assert_eq!(schedule.loaded(TaskId(0), all(1), None), Next::Finish);
    schedule.ready(TaskId(0));
    assert_eq!(schedule.deliver(1).count(), 1);
    assert_eq!(claim(&mut schedule, with(0)), None);
    schedule.block();
    assert_eq!(
        claim(&mut schedule, with(0)),
        Some(Claim::Grant { task, bytes })
    );
}

/// Up to 64 beyond the first that is missing, of those that are to be made.
#[test]
fn gaps_are_not_too_far_behind() {
    for given in [0, 0b1011, u64::MAX] {
        let given = Given::behind_first(given);
        let mut schedule = session(EpochPlan {
            any_order: true,
            given,
            ..plan(500, 1, 500)
        });
        let most = (1..=MOST_BEHIND).filter(|batch| given.behind() >> (batch - 1) & 1 == 0);
        let most = most.count() as u64;
        assert_eq!(claim(&mut schedule, OWN), rows(0, 0..1));
        for task in 1..=most {
            make(&mut schedule, task, 1_000_000);
            assert_eq!(schedule.deliver_any(), [(TaskId(task), ())]);
            assert!(!schedule.holds(TaskId(task)));
        }
        assert_eq!(claim(&mut schedule, OWN), None);
        assert_eq!(schedule.remaining(), Some(500 - given.count()));
        schedule.want(TaskId(0), 1);
        schedule.granted(TaskId(0));
        assert_eq!(schedule.loaded(TaskId(0), all(1), None), Next::Finish);
        schedule.ready(TaskId(0));
        assert_eq!(schedule.deliver_any().len(), 1);
        assert_eq!(schedule.first(), TaskId(most + 1));
        assert_eq!(claim(&mut schedule, OWN), rows(most + 1, 0..1));
    }
}
