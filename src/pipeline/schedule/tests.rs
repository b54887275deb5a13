//! The schedule between models of everybody who asks it: workers, the pin thread, the ring, copies and a consumer take
//! turns at random, one step under the board's lock, or between two, at a time.
//!
//! The models do what `worker.rs`, `pin.rs` and `consumer.rs` do, in the same order; what they find is checked against
//! a record of their own. Nobody is allowed to look where no notification brought him, so that a wake-up that is lost
//! is a standstill, and each standstill is a failure.

mod model;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::model::{Fault, Kind, Options, Seen, World};
use super::*;

fn options() -> impl Strategy<Value = Options> {
    let kind = prop::sample::select(vec![Kind::Alike, Kind::Late, Kind::Elsewhere]);
    let fault = prop_oneof![
        6 => Just(Fault::None),
        1 => (0usize..5).prop_map(Fault::Row),
        1 => Just(Fault::Plan),
        1 => Just(Fault::Finish),
    ];
    let sizes = (0u64..26, 1usize..6, any::<bool>());
    let ahead = (1usize..5, 1usize..4);
    let budget = prop_oneof![0usize..3, 0usize..9];
    let ring = (budget, any::<bool>());
    let batches = prop::collection::vec((kind, fault), 26);
    let whole = prop_oneof![2 => Just(None), 1 => any::<bool>().prop_map(Some)];
    (sizes, ahead, ring, batches, whole, any::<[bool; 2]>()).prop_map(
        |(
            (samples, batch_size, drop_last),
            (prefetch, workers),
            (budget, strict),
            batches,
            grows,
            [streams, sends],
        )| {
            let whole = grows.map(|grows| Whole { workers, grows });
            Options {
                samples,
                batch_size,
                drop_last,
                prefetch,
                workers,
                whole,
                streams,
                sends,
                budget,
                strict,
                batches,
            }
        },
    )
}

/// Whatever the order of steps, all batches come, each once and in order, and each invariant of the model holds.
#[test]
fn every_interleaving_delivers_every_batch() {
    let mut runner = TestRunner::new(Config {
        cases: 2_000,
        failure_persistence: None,
        ..Config::default()
    });
    let seen = std::cell::Cell::new(Seen::default());
    let script = prop::collection::vec(any::<u32>(), 0..300);
    let tested = runner.run(
        &(options(), script, any::<u64>()),
        |(options, script, seed)| {
            let mut world = World::new(options);
            world.run(&script, seed);
            seen.set(seen.get() + world.seen);
            Ok(())
        },
    );
    tested.unwrap();
    // The model comes to every corner that it is there for.
    let Seen {
        unpinned,
        refused,
        waited,
        looked_again,
        relocated,
        failed,
        parked,
        whole,
        several,
        sent,
    } = seen.get();
    let corners = [
        unpinned,
        refused,
        waited,
        looked_again,
        relocated,
        failed,
        parked,
        whole,
        several,
        sent,
    ];
    assert!(corners.iter().all(|&count| count > 0), "{:?}", seen.get());
}

#[test]
fn a_batch_is_opened_only_within_the_prefetch() {
    let mut schedule = Schedule::new(Cut::whole(10, 2, false), 3, None);
    for batch in 0..3 {
        for _ in 0..2 {
            assert!(
                matches!(schedule.claim(false), Some(Claim::Rows { batch: b, .. }) if b == batch)
            );
        }
    }
    assert_eq!(schedule.claim(false), None);
    assert!(!schedule.has_claim(false));
}

/// With every batch that the consumer takes, another is opened: `prefetch` are ahead, and not half of them, unless making a
/// batch takes no time at all.
#[test]
fn the_window_is_full_after_each_batch() {
    for (batch_ns, at_once) in [(10_000_000, 1), (10_000, 4)] {
        let mut schedule = Schedule::new(Cut::whole(100, 1, false), 8, None);
        for batch in 0..8 {
            assert!(schedule.claim(false).is_some());
            schedule.loaded(batch, 1, batch_ns, false);
            schedule.want(batch, 1);
            schedule.granted(batch);
            schedule.done(batch);
        }
        assert!(!schedule.has_claim(false));
        assert_eq!(schedule.ready(), at_once);
        schedule.deliver(at_once);
        assert!(schedule.claim(false).is_some());
        assert_eq!(schedule.ahead(), 8);
    }
}

/// Parts that were sent are taken all at once, with the first that was not.
#[test]
fn what_was_sent_is_taken_at_once() {
    let mut schedule = Schedule::new(Cut::whole(100, 1, false), 4, None);
    let make = |schedule: &mut Schedule, batch, sent| {
        assert!(schedule.claim(false).is_some());
        schedule.loaded(batch, 1, 10_000_000, false);
        schedule.want(batch, 1);
        schedule.granted(batch);
        match sent {
            true => schedule.sent(batch),
            false => schedule.done(batch),
        }
    };
    for (batch, sent) in [true, true, false, true, false, false]
        .into_iter()
        .enumerate()
    {
        make(&mut schedule, batch as u64, sent);
    }
    assert_eq!(schedule.ready(), 4);
    schedule.deliver(4);
    assert_eq!(
        (schedule.ready(), schedule.ahead()),
        (1, 3),
        "one was taken, two are open"
    );
}

/// Two epochs that follow each other have together no more ahead, and no more slabs, than one.
#[test]
fn an_epoch_behind_another_takes_what_that_leaves() {
    let mut first = Schedule::new(Cut::whole(4, 2, false), 3, None);
    let mut second = Schedule::new(Cut::whole(4, 2, false), 3, None);
    assert!(first.is_ending(), "both batches may be opened");
    let claim = |schedule: &mut Schedule, behind| {
        schedule.stand_behind(behind);
        let claim = schedule.claim(false);
        assert!(claim.is_some() || !schedule.has_claim(false));
        claim
    };
    let rows = |batch, rows| Some(Claim::Rows { batch, rows });
    // A batch of the first is not open yet: the second's wait.
    assert_eq!(first.claim(false), rows(0, 0..1));
    assert_eq!(claim(&mut second, first.left()), None);
    for _ in 0..3 {
        assert!(first.claim(false).is_some());
    }
    assert_eq!(first.claim(false), None);
    // Two of three are open, and need slabs.
    assert_eq!(claim(&mut second, first.left()), rows(0, 0..1));
    assert_eq!(claim(&mut second, first.left()), rows(0, 1..2));
    assert_eq!(claim(&mut second, first.left()), None);
    second.want(0, 1);
    assert_eq!(second.next_want().map(|want| want.reserve), Some(2));
    first.want(0, 1);
    first.granted(0);
    second.stand_behind(first.left());
    assert_eq!(second.next_want().map(|want| want.reserve), Some(1));
    // One is delivered: there is room for another.
    first.done(0);
    first.deliver(1);
    assert_eq!(claim(&mut second, first.left()), rows(1, 0..1));
    assert_eq!(claim(&mut second, Behind::default()), rows(1, 1..2));
}

#[test]
fn an_epoch_is_ending_when_the_rest_may_be_opened() {
    let mut schedule = Schedule::new(Cut::whole(5, 1, false), 2, None);
    let mut ending = Vec::new();
    for batch in 0..5 {
        while schedule.claim(false).is_some() {}
        ending.push(schedule.is_ending());
        schedule.want(batch, 1);
        schedule.granted(batch);
        schedule.done(batch);
        schedule.deliver(1);
    }
    // With two open, one may be opened when the next is delivered: the last of five.
    assert_eq!(ending, [false, false, true, true, true]);
}

/// Where loading is copying, spare workers stay out of it; where samples are computed they join in, however large.
#[test]
fn spare_workers_do_not_copy() {
    for (elapsed_ns, may_load) in [(100_000, false), (1_000_000, true)] {
        let mut schedule = Schedule::new(Cut::whole(100, 10, false), 2, None);
        schedule.claim(false);
        schedule.want(0, 6_000_000);
        schedule.streams(0, 6_000_000);
        schedule.granted(0);
        assert!(!schedule.has_claim(true), "nobody knows yet");
        schedule.loaded(0, 1, elapsed_ns, false);
        assert_eq!(schedule.has_claim(true), may_load);
        assert_eq!(schedule.claim(true).is_some(), may_load);
        assert!(schedule.has_claim(false));
    }
}

/// A fast data set is claimed in long runs, a slow one sample by sample.
#[test]
fn runs_follow_the_time_of_a_sample() {
    let mut schedule = Schedule::new(Cut::whole(10_000, 10_000, false), 1, None);
    let mut claim = |elapsed_ns| match schedule.claim(false) {
        Some(Claim::Rows { batch, rows }) => {
            schedule.loaded(batch, rows.len(), elapsed_ns * rows.len() as u64, false);
            rows.len()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(claim(1_000), 1);
    assert_eq!(claim(1_000), 100);
    for _ in 0..20 {
        claim(RUN_NS);
    }
    assert_eq!(claim(RUN_NS), 1);
}

/// `drop_last` and sizes that do not divide: as many rows as there are samples, and not one more.
#[test]
fn the_last_batch_has_what_is_left() {
    let rows = |schedule: &Schedule| -> Vec<usize> {
        (0..schedule.remaining())
            .map(|batch| schedule.rows_of(batch))
            .collect()
    };
    assert_eq!(
        rows(&Schedule::new(Cut::whole(7, 3, false), 1, None)),
        [3, 3, 1]
    );
    assert_eq!(
        rows(&Schedule::new(Cut::whole(7, 3, true), 1, None)),
        [3, 3]
    );
    assert_eq!(
        rows(&Schedule::new(Cut::whole(2, 3, true), 1, None)),
        [] as [usize; 0]
    );
    assert_eq!(
        rows(&Schedule::new(Cut::whole(0, 3, false), 1, None)),
        [] as [usize; 0]
    );
    assert_eq!(
        rows(&Schedule::new(Cut::whole(2, usize::MAX, false), 1, None)),
        [2]
    );
    assert_eq!(
        Schedule::new(Cut::whole(u64::MAX, 1, false), 1, None).remaining(),
        u64::MAX
    );
}
