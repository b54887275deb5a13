//! One global order over blocks, which are read in sequence: a fixed number of them is open at a time, over all ranks together.

mod block_sampler;
mod openings;
mod sizes;

pub use block_sampler::BlockSampler;
pub use openings::{Opening, Openings};
pub use sizes::Blocks;
