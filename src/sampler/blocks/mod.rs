//! One global order over blocks, which are read in sequence: a fixed number of them is open at a time, over all ranks together.
//!
//! # The order
//!
//! Block `k` has samples `off(k) .. off(k + 1)`; there are `N` samples in `K` blocks, and `L` tracks. `P(len; key)` is the keyed permutation
//! that [`RandomSampler`](super::RandomSampler) has.
//!
//! 1. *Of the run* (`row.rs`): the blocks in the order `P(K; seed)` lie in a row. Track `t` has the stretch of it from
//!    `t * (N div L) + min(t, N mod L)` on, up to where the next begins. Stretches cut some blocks: what a track has of one is a *piece*,
//!    and there are `K + L - 1` at most. So a block stays in its track, and on its node's disk, in all epochs.
//! 2. *Of an epoch* (`track.rs`): a track reads its pieces in the order `P(pieces; seed, epoch, t)`. The first is cut at `t / L` of its
//!    length: its second part begins the track, its first part ends it. So tracks do not come to the ends of their blocks together.
//! 3. *Of a position* `p`: it is position `q = p div L` of track `p mod L`. If that lies in the piece of samples `lo..hi`, which begins
//!    at the track's position `u`, the index is `lo + P(hi - lo; seed, epoch, lo)(q - u)`.
//!
//! Whatever the sizes, each sample comes once, and all tracks end together.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `sizes.rs` | [`Blocks`]: where each begins |
//! | `row.rs`, `track.rs` | the order: steps 1, and 2 and 3 |
//! | `known.rs` | what is kept of it: the tracks' pieces in three epochs, and the next indices of each track |
//! | `block_sampler.rs` | [`BlockSampler`]: the order as a sampler |
//! | `openings.rs`, `merge.rs` | [`Openings`]: which pieces a lane needs, and when |
//! | `again.rs` | when an epoch comes to the samples of an opening of the one before |

mod again;
mod block_sampler;
mod known;
mod merge;
mod openings;
mod row;
mod sizes;
mod track;

pub(crate) use again::Again;
pub use block_sampler::BlockSampler;
pub use openings::{Opening, Openings};
pub use sizes::Blocks;
