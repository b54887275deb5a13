//! The pieces that a lane needs, out of all its tracks, in the order in which it begins to need them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::known::{Epoch, Known};
use super::track::{Piece, Track};
use super::{Blocks, Opening};
use crate::sync::Arc;

/// Where pieces come from: one track after the other.
pub(super) enum Pieces {
    /// Blocks as they lie: one track, of which each is a piece.
    InOrder(Arc<Blocks>),
    Shuffled {
        order: Arc<Known>,
        epoch: Arc<Epoch>,
    },
}

/// A track, as far as the lane goes through it.
enum OneTrack {
    InOrder(Arc<Blocks>),
    Shuffled(Arc<Track>),
}

/// Merges the lane's tracks. A heap has the next piece of each.
pub(super) struct Merge {
    pieces: Pieces,
    from: u64,
    lane: Lane,
    /// `None`: it was not asked yet. (Its tracks are put in order when it is, not when an epoch is begun.)
    heap: Option<BinaryHeap<Next>>,
}

/// Which places of a track a lane has: each `every`-th.
#[derive(Debug, Clone, Copy)]
struct Lane {
    lane: u64,
    tracks: u64,
    /// The greatest common divisor of lanes and tracks: the lane has places of each so-manieth track.
    common: u64,
    every: u64,
    /// `tracks / common` times this is 1 modulo `every`.
    inverse: u64,
}

/// The next piece of a track.
struct Next {
    opening: Opening,
    track: u64,
    /// The first of the lane's places in it.
    first: u64,
    pieces: OneTrack,
}

impl Merge {
    pub(super) fn new(pieces: Pieces, from: u64, lane: u64, lanes: u64) -> Merge {
        let tracks = match &pieces {
            Pieces::InOrder(_) => 1,
            Pieces::Shuffled { order, .. } => order.row.tracks(),
        };
        Merge {
            pieces,
            from,
            lane: Lane::new(lane, lanes.max(1), tracks),
            heap: None,
        }
    }

    /// The first piece that each of the lane's tracks needs.
    fn begin(&self) -> BinaryHeap<Next> {
        let Lane {
            lane,
            tracks,
            common,
            ..
        } = self.lane;
        let mut heap = BinaryHeap::new();
        let mut track = lane % common;
        while track < tracks {
            let pieces = match &self.pieces {
                Pieces::InOrder(blocks) => OneTrack::InOrder(Arc::clone(blocks)),
                Pieces::Shuffled { order, epoch } => {
                    OneTrack::Shuffled(epoch.track(&order.row, track))
                }
            };
            let place = self.from.saturating_sub(track).div_ceil(tracks);
            heap.extend(self.next_of(track, place, pieces));
            let Some(next) = track.checked_add(common) else {
                break;
            };
            track = next;
        }
        heap
    }

    /// The first piece of a track that the lane needs from a place on.
    fn next_of(&self, track: u64, place: u64, pieces: OneTrack) -> Option<Next> {
        let first = self.lane.first(track, place)?;
        let (number, piece) = pieces.at(first)?;
        let every = self.lane.every;
        let more = (piece.ends() - 1 - first) / every;
        let position = |place| place * self.lane.tracks + track;
        let block = match &self.pieces {
            Pieces::InOrder(_) => number,
            Pieces::Shuffled { order, .. } => order.row.blocks().block_of(piece.samples.start)?,
        };
        Some(Next {
            opening: Opening {
                block,
                first: position(first),
                until: position(first + more * every) + 1,
                uses: more + 1,
                samples: piece.samples,
            },
            track,
            first,
            pieces,
        })
    }
}

impl Iterator for Merge {
    type Item = Opening;

    fn next(&mut self) -> Option<Opening> {
        if self.heap.is_none() {
            self.heap = Some(self.begin());
        }
        let Next {
            opening,
            track,
            first,
            pieces,
            ..
        } = self.heap.as_mut()?.pop()?;
        let behind = first + (opening.uses - 1) * self.lane.every + 1;
        let next = self.next_of(track, behind, pieces);
        self.heap.as_mut()?.extend(next);
        Some(opening)
    }
}

impl OneTrack {
    /// The piece that a place lies in, and its number.
    fn at(&self, place: u64) -> Option<(u64, Piece)> {
        match self {
            OneTrack::InOrder(blocks) => {
                let block = blocks.block_of(place)?;
                let samples = blocks.range(block);
                let begins = samples.start;
                Some((block, Piece { samples, begins }))
            }
            OneTrack::Shuffled(track) => {
                let number = track.number(place);
                Some((number as u64, track.piece(number)?))
            }
        }
    }
}

impl Lane {
    fn new(lane: u64, lanes: u64, tracks: u64) -> Lane {
        let common = greatest_common_divisor(lanes, tracks);
        let every = lanes / common;
        Lane {
            lane: lane % lanes,
            tracks,
            common,
            every,
            inverse: inverse(tracks / common, every),
        }
    }

    /// The first place of a track, from `place` on, whose position is the lane's. `None`: there is no such number.
    ///
    /// Place `q` of track `t` is position `q * tracks + t`. That is `lane` modulo `lanes` if `q * (tracks / common)` is
    /// `(lane - t) / common` modulo `every`, for tracks that are the lane modulo `common`.
    fn first(&self, track: u64, place: u64) -> Option<u64> {
        let (every, common) = (u128::from(self.every), u128::from(self.common));
        // (A multiple of `every * common` keeps it from being negative.)
        let apart = u128::from(self.lane) + every * common * u128::from(track) - u128::from(track);
        let residue = apart / common % every * u128::from(self.inverse) % every;
        let ahead = (residue + every - u128::from(place) % every) % every;
        place.checked_add(u64::try_from(ahead).ok()?)
    }
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// The inverse of a number modulo another that it has no divisor in common with, by Euclid's extended algorithm.
fn inverse(number: u64, modulus: u64) -> u64 {
    let modulus = i128::from(modulus);
    let (mut remainder, mut next) = (modulus, i128::from(number) % modulus);
    let (mut of, mut of_next) = (0, 1);
    while next > 0 {
        let quotient = remainder / next;
        (remainder, next) = (next, remainder % next);
        (of, of_next) = (of_next, of - quotient * of_next);
    }
    of.rem_euclid(modulus) as u64
}

impl Ord for Next {
    /// The least first: `BinaryHeap` pops the greatest. (No two have one position.)
    fn cmp(&self, other: &Next) -> Ordering {
        other.opening.first.cmp(&self.opening.first)
    }
}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Next) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Next) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Next {}
