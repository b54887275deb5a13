//! How long others wait for the ledger, and what an operation that fails leaves.

use std::io::ErrorKind;
use std::rc::Rc;

use super::world::{Fault, World};
use super::{Objects, PAGE, PAGE_FILE, cache};
use crate::store::{NextUse, Object, with_next_use};
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Ordering, thread};

const PAGES: u64 = 300;

/// A folder with so many pages, which a process has read.
fn filled(pages: u64) -> (Arc<World>, Arc<Objects>) {
    let (world, objects) = (
        World::new(1, 0, false, &[]),
        Objects::new(&[pages * PAGE], None),
    );
    let first = world.another();
    let cache = cache(&world, first, &objects, pages);
    cache.enter().unwrap();
    let object = &objects.all[0];
    for page in 0..pages {
        cache.read(object, page * PAGE..(page + 1) * PAGE).unwrap();
    }
    assert_eq!(world.used(), (pages * PAGE_FILE, 0));
    (world, objects)
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[test]
fn a_folder_is_opened_without_keeping_others_waiting() {
    let (world, objects) = filled(PAGES);
    world.forget_most();
    let cache = cache(&world, world.another(), &objects, PAGES);
    cache.enter().unwrap();
    let most = world.most_under_ledger();
    assert!(most < 20, "{most} operations, {PAGES} pages");
}

#[test]
fn a_folder_that_is_much_too_large_shrinks_while_others_read() {
    let (world, objects) = filled(PAGES);
    world.forget_most();
    let cache = cache(&world, world.another(), &objects, 10);
    cache.enter().unwrap();
    assert_eq!(world.used(), (10 * PAGE_FILE, 0));
    assert_eq!(count(&cache.counters.evicted), PAGES - 10);
    let most = world.most_under_ledger();
    assert!(most < 200, "{most} operations, {PAGES} pages");
}

/// Pages of an object that the process has: their stamps are read before it takes the ledger.
#[test]
fn stamps_are_read_while_others_may_change_names() {
    let (world, objects) = filled(PAGES);
    let cache = cache(&world, world.another(), &objects, PAGES);
    cache.enter().unwrap();
    cache.know(&objects.all);
    let more = Object {
        key: "another".to_owned(),
        ..objects.all[0].clone()
    };
    cache.know(std::slice::from_ref(&more));
    world.forget_most();
    let next = NextUse {
        run: 1,
        now: 0,
        next: 1,
        rest: None,
        lap: 100,
    };
    for page in 0..4 {
        let range = page * PAGE..(page + 1) * PAGE;
        let read = || cache.read(&more, range.clone());
        with_next_use(Some(Rc::new(move || next)), read).unwrap();
    }
    assert_eq!(count(&cache.counters.kept), 4);
    let most = world.most_under_ledger();
    assert!(most < 30, "{most} operations");
}

/// All of them find it full, and none of them knows what is in it.
#[test]
fn of_many_threads_one_lists_the_folder() {
    let (world, objects) = filled(PAGES);
    let cache = cache(&world, world.another(), &objects, PAGES);
    cache.enter().unwrap();
    let before = world.lists();
    let arrived = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..8 {
            let (cache, objects, arrived) = (&cache, &objects, &arrived);
            scope.spawn(move || {
                let more = Object {
                    key: format!("another-{thread}"),
                    ..objects.all[0].clone()
                };
                arrived.fetch_add(1, Ordering::Relaxed);
                while count(arrived) < 8 {
                    thread::yield_now();
                }
                cache.read(&more, 0..PAGE).unwrap();
            });
        }
    });
    assert_eq!(count(&cache.counters.evicted), 8);
    assert_eq!(world.lists() - before, 1);
}

/// The machine begins anew: the number in the ledger is not trusted.
#[test]
fn what_a_loss_of_power_left_is_counted_anew() {
    for seed in 0..20 {
        let (world, objects) = filled(40);
        world.lose_power(seed);
        let cache = cache(&world, world.another(), &objects, 40);
        cache.enter().unwrap();
        let (used, _) = world.used();
        assert_eq!(cache.ledger().unwrap().used, used, "seed {seed}");
    }
}

/// Pages that were removed by hand are room for others, once a cache is opened.
#[test]
fn what_was_removed_by_hand_is_noticed() {
    let (world, objects) = filled(40);
    world.remove_by_hand(7);
    let cache = cache(&world, world.another(), &objects, 40);
    cache.enter().unwrap();
    assert_eq!(cache.ledger().unwrap().used, 33 * PAGE_FILE);
}

/// A disk that fails to give a page has not damaged it: the page stays, and what was kept is counted when it is there.
#[test]
fn an_operation_that_fails_damages_no_page_and_counts_none() {
    let operations = |with: Option<u64>| {
        let (world, objects) = filled(6);
        let second = world.another();
        let cache = cache(&world, second, &objects, 12);
        cache.enter().unwrap();
        let more = Object {
            key: "another".to_owned(),
            ..objects.all[0].clone()
        };
        let begun = world.operations(second);
        let fail = with.map(|operation| Fault::Fail {
            process: second,
            operation: begun + operation,
            with: ErrorKind::Other,
        });
        world.set_faults(fail.as_slice());
        for object in [&objects.all[0], &more] {
            let all = 0..object.bytes;
            let read = cache.read(object, all.clone()).unwrap();
            assert!(read == Objects::bytes(object, all), "{fail:?}");
        }
        let counters = &cache.counters;
        assert_eq!(count(&counters.damaged), 0, "{fail:?}");
        assert!(count(&counters.failures) <= 2, "{fail:?}");
        let kept = count(&counters.kept);
        let (used, parts) = world.used();
        let there = used / PAGE_FILE - parts as u64;
        assert_eq!(there, 6 + kept, "{fail:?}");
        world.operations(second) - begun
    };
    let all = operations(None);
    assert!(all > 50, "{all}");
    for operation in 1..=all {
        operations(Some(operation));
    }
}
