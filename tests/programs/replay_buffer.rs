//! Reinforcement learning: a replay buffer that an agent goes on writing, and a sampler that draws what was rewarded twice as
//! often.

use std::error::Error;
use std::sync::{Arc, RwLock};

use pinfeed::sampler::Sampler;
use pinfeed::rng::RngKey;
use pinfeed::{BoxError, DataLoader, Dataset, SampleRng};

const CAPACITY: u64 = 256;
const BATCH: usize = 32;
/// How many batches are learned from between two visits to the environment.
const STEPS: u64 = 8;

#[derive(Clone, Copy)]
struct Transition {
    state: [f32; 4],
    action: i64,
    reward: f32,
}

/// What the agent writes and the loader reads. When it is full, the oldest is written over.
struct Replay(Arc<RwLock<Vec<Transition>>>);

impl Dataset for Replay {
    type Sample = ([f32; 4], i64, f32);

    fn len(&self) -> u64 {
        CAPACITY
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        let buffer = self.0.read().map_err(|_| "the agent panicked")?;
        let Transition { state, action, reward } = buffer[index as usize];
        Ok((state, action, reward))
    }
}

/// Draws with replacement. A transition at an odd place was rewarded, and comes up twice as often.
struct Rewarded {
    seed: u64,
}

impl Sampler for Rewarded {
    fn len(&self) -> u64 {
        STEPS * BATCH as u64
    }

    /// A function of seed, epoch and position alone: so it does not matter which worker asks, or when.
    fn index(&self, epoch: u64, position: u64) -> u64 {
        let mut rng = SampleRng::for_sampler(RngKey { seed: self.seed, epoch, position });
        let pair = 2 * rng.below(CAPACITY / 2);
        pair + u64::from(rng.bool(2.0 / 3.0))
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let buffer = Arc::new(RwLock::new(Vec::new()));
    let mut agent = Agent { time: 0 };
    for _ in 0..CAPACITY {
        agent.act(&buffer)?; // the loader wants a full buffer: fill it first
    }

    let loader = DataLoader::builder(Replay(Arc::clone(&buffer)))
        .batch_size(BATCH)
        .sampler(Rewarded { seed: 3 })
        .num_workers(2)
        .build()?;

    let (mut rewarded, mut seen) = (0, 0);
    for epoch in 0..20 {
        // `epoch`, not `epochs`: that would load the next one's first batches before the agent has acted.
        let oldest = agent.time - CAPACITY;
        for batch in loader.epoch(epoch) {
            let (states, actions, rewards) = batch?;
            assert_eq!(states.shape()[..], [BATCH, 4]);
            assert!(actions.as_slice().iter().all(|action| (0..2).contains(action)));
            let times = states.as_slice().iter().step_by(4);
            assert!(times.into_iter().all(|time| (oldest..agent.time).contains(&(*time as u64))));
            rewarded += rewards.as_slice().iter().filter(|reward| **reward > 0.0).count();
            seen += rewards.len();
        }
        for _ in 0..CAPACITY / 4 {
            agent.act(&buffer)?;
        }
    }
    let share = rewarded as f64 / seen as f64;
    println!("{seen} transitions, {:.1} % of them rewarded", 100.0 * share);
    assert!((share - 2.0 / 3.0).abs() < 0.05);
    Ok(())
}

struct Agent {
    time: u64,
}

impl Agent {
    fn act(&mut self, buffer: &RwLock<Vec<Transition>>) -> Result<(), Box<dyn Error>> {
        let transition = Transition {
            state: [self.time as f32, 0.0, 0.0, 1.0],
            action: (self.time / 7 % 2) as i64,
            reward: (self.time % 2) as f32,
        };
        let mut buffer = buffer.write().map_err(|_| "a worker panicked")?;
        match buffer.get_mut((self.time % CAPACITY) as usize) {
            Some(oldest) => *oldest = transition,
            None => buffer.push(transition),
        }
        self.time += 1;
        Ok(())
    }
}
