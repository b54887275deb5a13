//! Runs a scenario under one schedule after another. All that happens in one follows from its seed.

use std::env;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic;
use std::str::FromStr;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use pinfeed::SampleRng;
use pinfeed::rng::RngKey;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, FailurePersistence, Runner};

/// How long a scenario is explored, in seconds, unless `PINFEED_SECONDS` says so.
const SECONDS: f64 = 1.0;

/// A schedule that is longer goes in circles.
const MOST_STEPS: usize = 200_000;

/// Runs a scenario under ever new schedules, at most `PINFEED_SCHEDULES`, or under the one that `PINFEED_SEED` names. With
/// `PINFEED_FIRST_SEED`, the schedules are the same each time. A scenario must use nothing that is random or depends on the time, but by shuttle.
pub fn explore(name: &'static str, scenario: impl Fn() + Send + Sync + 'static) {
    let replayed = variable("PINFEED_SEED");
    let seconds = variable("PINFEED_SECONDS").unwrap_or(SECONDS);
    // Of few digits, to be read and typed.
    let new = || RandomState::new().build_hasher().finish() >> 32;
    let seed = replayed.or_else(|| variable("PINFEED_FIRST_SEED"));
    let seed = seed.unwrap_or_else(new);
    let chooser = Chooser {
        name,
        seed,
        most: match replayed {
            Some(_) => 1,
            None => variable("PINFEED_SCHEDULES").unwrap_or(usize::MAX),
        },
        end: Instant::now() + Duration::from_secs_f64(seconds),
        schedules: 0,
        step: 0,
        rng: SampleRng::for_sample(RngKey {
            seed,
            epoch: 0,
            position: 0,
        }),
        way: Way::Any,
    };
    name_seeds_of_aborts();
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = shuttle::MaxSteps::FailAfter(MOST_STEPS);
    let schedules = Runner::new(chooser, config).run(scenario);
    println!("{name}: {schedules} schedules from seed {seed}");
}

/// The schedule that is run, as its failure is reported.
static SCHEDULE: Mutex<String> = Mutex::new(String::new());

/// A panic while another one unwinds ends the process, and nothing is dropped: the schedule is named before.
fn name_seeds_of_aborts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            report(info);
            let message = info.payload().downcast_ref::<&str>().unwrap_or(&"");
            if message.contains("during cleanup") || message.contains("cannot unwind") {
                eprintln!(
                    "{}",
                    SCHEDULE.lock().unwrap_or_else(PoisonError::into_inner)
                );
            }
        }));
    });
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    let value = text.parse().ok();
    assert!(value.is_some(), "{name} is no number: {text}");
    value
}

/// Chooses who goes on.
struct Chooser {
    name: &'static str,
    /// The seed of the schedule that is run; the next one's is one more.
    seed: u64,
    /// How many schedules are run at most, and until when.
    most: usize,
    end: Instant,
    schedules: usize,
    step: usize,
    rng: SampleRng,
    way: Way,
}

/// How it chooses: what one way finds soon, another may find late.
enum Way {
    /// Anybody, at each step.
    Any,
    /// The thread that runs goes on for a while.
    Runs,
    /// The first in an order, which changes at a few steps: "A Randomized Scheduler with Probabilistic Guarantees of Finding
    /// Bugs" (Burckhardt and others, 2010).
    Order {
        priorities: Vec<i64>,
        lowest: i64,
        changes: Vec<usize>,
    },
}

impl Chooser {
    fn failure(&self) -> String {
        format!(
            "{} failed under schedule {}: PINFEED_SEED={} ci/shuttle.sh 1 {0}",
            self.name, self.schedules, self.seed
        )
    }
}

impl Scheduler for Chooser {
    fn new_execution(&mut self) -> Option<Schedule> {
        let over = self.schedules >= self.most || Instant::now() >= self.end;
        if over && self.schedules > 0 {
            return None;
        }
        if self.schedules > 0 {
            self.seed = self.seed.wrapping_add(1);
        }
        self.schedules += 1;
        *SCHEDULE.lock().unwrap_or_else(PoisonError::into_inner) = self.failure();
        self.step = 0;
        self.rng = SampleRng::for_sample(RngKey {
            seed: self.seed,
            epoch: 0,
            position: 0,
        });
        self.way = match self.rng.below(3) {
            0 => Way::Any,
            1 => Way::Runs,
            _ => {
                // Nobody knows how long the schedule is going to be: early steps are as likely as late ones.
                let change = |_| 1 << self.rng.below(12);
                let most: Vec<u64> = (0..4).map(change).collect();
                let changes = most.iter().map(|&most| self.rng.below(most) as usize);
                Way::Order {
                    changes: changes.collect(),
                    priorities: Vec::new(),
                    lowest: 0,
                }
            }
        };
        Some(Schedule::new(self.seed))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        yields: bool,
    ) -> Option<TaskId> {
        self.step += 1;
        let any = runnable[self.rng.below(runnable.len() as u64) as usize].id();
        let goes_on = current.filter(|current| runnable.iter().any(|task| task.id() == *current));
        match &mut self.way {
            Way::Any => Some(any),
            Way::Runs => match goes_on.filter(|_| !yields) {
                Some(current) if self.rng.below(16) > 0 => Some(current),
                _ => Some(any),
            },
            Way::Order {
                priorities,
                lowest,
                changes,
            } => {
                for task in runnable {
                    while priorities.len() <= usize::from(task.id()) {
                        priorities.push(self.rng.below(1 << 32) as i64);
                    }
                }
                if let Some(current) = current
                    && (yields || changes.contains(&self.step))
                {
                    *lowest -= 1;
                    priorities[usize::from(current)] = *lowest;
                }
                let tasks = runnable.iter().map(|task| task.id());
                tasks.max_by_key(|task| priorities[usize::from(*task)])
            }
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.rng.next_u64()
    }
}

impl Drop for Chooser {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.failure());
        }
    }
}
