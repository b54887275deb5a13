//! Processes that share a folder: each is killed at each of its operations, each operation fails, the disk is full or read-only, the
//! machine loses power. Afterwards another process opens what is left.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use super::world::{Fault, Killed, World};
use super::{Draws, Objects, PAGE, PAGE_FILE, cache, each_seed};
use crate::error::is_temporary;
use crate::store::next_use::{AskNextUse, NextUse, with_next_use};
use crate::sync::{Arc, Ordering, thread};

/// What the processes of a run do.
#[derive(Clone, Copy)]
struct Plan {
    seed: u64,
    processes: usize,
    reads: u64,
    /// The budget, in pages.
    pages: u64,
    /// One in so many requests fails.
    fails_once_in: Option<u64>,
}

impl Plan {
    fn of_seed(seed: u64) -> Plan {
        let mut draws = Draws(seed);
        Plan {
            seed,
            processes: 2,
            reads: 6,
            pages: 2 + draws.below(12),
            fails_once_in: draws.once_in(3).then_some(5),
        }
    }

    fn objects(&self) -> Arc<Objects> {
        let lengths = [5 * PAGE + 10, 3 * PAGE, 4 * PAGE + 1, 7];
        Objects::new(&lengths, self.fails_once_in)
    }

    fn world(&self, faults: &[Fault]) -> Arc<World> {
        World::new(self.seed, self.processes, true, faults)
    }

    /// What a process does: it opens the cache, and reads. Each read is right, or its request has failed.
    fn live(&self, world: &Arc<World>, process: usize, objects: &Arc<Objects>) {
        let cache = cache(world, process, objects, self.pages);
        if cache.enter().is_err() {
            return; // it is refused
        }
        let mut draws = Draws(self.seed ^ (process as u64) << 32);
        if draws.once_in(2) {
            cache.know(&objects.all);
        }
        for at in 0..self.reads {
            let object = &objects.all[draws.below(objects.all.len() as u64) as usize];
            let start = draws.below(object.bytes);
            let end = start + 1 + draws.below((object.bytes - start).min(5 * PAGE));
            let next_use = NextUse {
                run: 1 + draws.below(2),
                now: 10 * at,
                next: 10 * at + draws.below(120),
                rest: None,
                lap: 60,
            };
            let ask = (!draws.once_in(4)).then(|| -> AskNextUse { Rc::new(move || next_use) });
            match with_next_use(ask, || cache.read(object, start..end)) {
                Ok(bytes) => assert_eq!(bytes, Objects::bytes(object, start..end), "{self:?}"),
                Err(error) => assert!(is_temporary(&error), "{self:?}: {error}"),
            }
            let parts = &cache.per_process.shared().parts;
            assert_eq!(parts.load(Ordering::Relaxed), 0, "{self:?}");
        }
    }

    /// Runs all processes until they have ended or died.
    fn run(&self, world: &Arc<World>, objects: &Arc<Objects>) {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.processes)
                .map(|process| {
                    let life = move || {
                        let live = AssertUnwindSafe(|| self.live(world, process, objects));
                        let lived = catch_unwind(live);
                        world.ends(process);
                        match lived {
                            Err(payload) if !payload.is::<Killed>() => resume_unwind(payload),
                            _ => {}
                        }
                    };
                    let named = thread::Builder::new().name(format!("process {process}"));
                    named.spawn_scoped(scope, life).unwrap()
                })
                .collect();
            for thread in threads {
                if let Err(payload) = thread.join() {
                    resume_unwind(payload);
                }
            }
        });
        assert!(!world.hangs(), "{self:?}: all wait");
        assert_eq!(world.open_files(), 0, "{self:?}: files are left open");
        let (most, budget) = (world.most_bytes(), self.pages * PAGE_FILE);
        assert!(most <= budget, "{self:?}: {most} bytes, of {budget}");
    }

    /// The next process finds the folder in order, and all of the objects as they are.
    fn check(&self, world: &Arc<World>, objects: &Arc<Objects>) {
        world.set_faults(&[]);
        world.set_room(u64::MAX);
        let process = world.another();
        let cache = cache(world, process, objects, self.pages);
        cache.enter().unwrap();
        let settled = |when: &str| {
            let (used, parts) = world.used();
            assert_eq!(parts, 0, "{self:?}, {when}: parts are left");
            assert!(used <= self.pages * PAGE_FILE, "{self:?}, {when}: {used}");
            let ledger = cache.ledger().unwrap();
            assert_eq!(ledger.used, used, "{self:?}, {when}: the ledger is wrong");
        };
        settled("when it was opened");
        for object in &objects.all {
            let all = 0..object.bytes;
            match cache.read(object, all.clone()) {
                Ok(bytes) => assert_eq!(bytes, Objects::bytes(object, all), "{self:?}"),
                Err(error) => assert!(is_temporary(&error), "{self:?}: {error}"),
            }
        }
        settled("when all was read");
        drop(cache);
        assert_eq!(world.open_files(), 0, "{self:?}: files are left open");
        world.ends(process);
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "PINFEED_SECONDS=0 PINFEED_SEED={} ({} processes, {} pages)",
            self.seed, self.processes, self.pages
        )
    }
}

/// How many operations each process has, if nothing fails.
fn operations(plan: &Plan) -> Vec<u64> {
    let (world, objects) = (plan.world(&[]), plan.objects());
    plan.run(&world, &objects);
    plan.check(&world, &objects);
    (0..plan.processes)
        .map(|process| world.operations(process))
        .collect()
}

#[test]
fn a_process_that_is_killed_at_any_operation_leaves_what_the_next_one_can_use() {
    let mut points = 0;
    let seeds = each_seed(0..8, |seed| {
        let plan = Plan::of_seed(seed);
        for (process, operations) in (0..).zip(operations(&plan)) {
            for operation in 1..=operations {
                let fault = Fault::Kill { process, operation };
                let (world, objects) = (plan.world(&[fault]), plan.objects());
                plan.run(&world, &objects);
                assert!(world.is_dead(process), "{plan:?}: {fault:?}");
                plan.check(&world, &objects);
                points += 1;
            }
        }
    });
    println!("{seeds} seeds, {points} kill points of two processes");
}

#[test]
fn three_processes_are_killed_at_any_time() {
    let mut kills = 0;
    let seeds = each_seed(100..300, |seed| {
        let plan = Plan {
            processes: 3,
            reads: 10,
            ..Plan::of_seed(seed)
        };
        let mut draws = Draws(!seed);
        let faults: Vec<Fault> = (0..3)
            .map(|process| Fault::Kill {
                process,
                operation: 1 + draws.below(400),
            })
            .collect();
        let (world, objects) = (plan.world(&faults), plan.objects());
        plan.run(&world, &objects);
        kills += (0..3).filter(|process| world.is_dead(*process)).count();
        plan.check(&world, &objects);
    });
    println!("{seeds} seeds, {kills} kills among three processes");
}

/// `fails_once_in` is off: what a read returns is right, whatever the disk does.
#[test]
fn no_read_fails_for_a_disk_that_does() {
    let mut points = 0;
    let seeds = each_seed(0..4, |seed| {
        let plan = Plan {
            fails_once_in: None,
            ..Plan::of_seed(seed)
        };
        let most = operations(&plan)[0];
        for operation in 1..=most {
            let (process, with) = (0, ErrorKind::StorageFull);
            let faults = [
                Fault::Fail {
                    process,
                    operation,
                    with,
                },
                Fault::ReadOnly { process, operation },
                Fault::Gone { process, operation },
            ];
            for fault in faults {
                let (world, objects) = (plan.world(&[fault]), plan.objects());
                plan.run(&world, &objects);
                plan.check(&world, &objects);
                points += 1;
            }
        }
    });
    println!("{seeds} seeds, {points} failures");
}

#[test]
fn a_disk_that_is_full_keeps_what_it_has_room_for() {
    each_seed(400..500, |seed| {
        let plan = Plan {
            fails_once_in: None,
            ..Plan::of_seed(seed)
        };
        let (world, objects) = (plan.world(&[]), plan.objects());
        world.set_room(Draws(!seed).below(plan.pages * PAGE_FILE + 200));
        plan.run(&world, &objects);
        plan.check(&world, &objects);
    });
}

#[test]
fn what_is_torn_by_a_loss_of_power_is_fetched_again() {
    each_seed(600..800, |seed| {
        let plan = Plan::of_seed(seed);
        let kill = Fault::Kill {
            process: 1,
            operation: 1 + Draws(seed).below(200),
        };
        let (world, objects) = (plan.world(&[kill]), plan.objects());
        plan.run(&world, &objects);
        world.lose_power(!seed);
        plan.check(&world, &objects);
    });
}

/// The others wait, and take it from the folder.
#[test]
fn what_several_processes_want_at_a_time_is_requested_once() {
    each_seed(900..1_000, |seed| {
        let plan = Plan {
            seed,
            processes: 3,
            reads: 12,
            pages: 40,
            fails_once_in: None,
        };
        let (world, objects) = (plan.world(&[]), plan.objects());
        plan.run(&world, &objects);
        let (used, _) = world.used();
        plan.check(&world, &objects);
        let bytes_of_pages = objects.bytes_requested.load(Ordering::Relaxed);
        let pages: u64 = objects
            .all
            .iter()
            .map(|object| object.bytes.div_ceil(PAGE))
            .sum();
        let all: u64 = objects.all.iter().map(|object| object.bytes).sum();
        assert_eq!(bytes_of_pages, all, "{plan:?}: {pages} pages, {used} used");
    });
}
