//! What is kept of the order: the tracks' pieces in three epochs, and of each track the indices that come next.

use std::collections::VecDeque;

use super::row::Row;
use super::track::Track;
use crate::sync::{Arc, Mutex, OnceLock};

/// How many indices of a track are computed together. A permutation is a key of up to 32 rounds, and then a few nanoseconds a sample.
const CHUNK: usize = 64;

/// Of how many positions of the order such chunks are kept, of all tracks together: workers and announcements are at different places, a batch apart
/// each. Where they are farther apart, they take each other's chunks away, and an index costs as much as a chunk: sixteen workers got 0.03 of
/// the rows that one gets, when 6 batches of 1,024 had a place. It takes 1 MiB.
const WINDOW: u64 = 128 << 10;

/// How many epochs' tracks are kept: those of the epoch that the program is at, of the next, which begins early, and of the one behind
/// that, which a cache asks for.
const EPOCHS: usize = 3;

/// The order of a run, and what of it is known. All of that follows from the row: threads that need the same thing at the same time may
/// each compute it, and none waits for another longer than it takes to look.
pub(super) struct Known {
    pub(super) row: Row,
    epochs: Mutex<VecDeque<Arc<Epoch>>>,
    /// By track.
    next: Box<[Mutex<Chunks>]>,
    /// How many chunks of a track are kept.
    chunks: usize,
}

/// The tracks of an epoch, as far as they were asked for.
pub(super) struct Epoch {
    pub(super) number: u64,
    tracks: Box<[OnceLock<Arc<Track>>]>,
}

/// Chunks of a track, each in the place that its number has. Empty until the track is asked for.
type Chunks = Box<[Chunk]>;

#[derive(Clone, Copy)]
struct Chunk {
    epoch: u64,
    number: u64,
    /// The last chunk of a track may have fewer: the rest is not asked for.
    indices: [u64; CHUNK],
}

impl Chunk {
    /// No track has so many positions.
    const NONE: Chunk = Chunk {
        epoch: 0,
        number: u64::MAX,
        indices: [0; CHUNK],
    };
}

impl Epoch {
    fn new(row: &Row, number: u64) -> Epoch {
        Epoch {
            number,
            tracks: (0..row.tracks()).map(|_| OnceLock::new()).collect(),
        }
    }

    pub(super) fn track(&self, row: &Row, track: u64) -> Arc<Track> {
        let known = &self.tracks[track as usize];
        if let Some(track) = known.get() {
            return Arc::clone(track);
        }
        let made = Arc::new(Track::new(row, self.number, track));
        // (Another thread may have made the same.)
        let _ = known.set(Arc::clone(&made));
        made
    }
}

impl Known {
    pub(super) fn new(row: Row) -> Known {
        Known {
            epochs: Mutex::default(),
            next: (0..row.tracks()).map(|_| Mutex::default()).collect(),
            chunks: (WINDOW / row.tracks()).div_ceil(CHUNK as u64).max(4) as usize,
            row,
        }
    }

    /// The tracks of an epoch.
    pub(super) fn epoch(&self, number: u64) -> Arc<Epoch> {
        let mut epochs = self.epochs.lock();
        let known = epochs.iter().position(|epoch| epoch.number == number);
        let known = known.and_then(|at| epochs.remove(at));
        let epoch = known.unwrap_or_else(|| Arc::new(Epoch::new(&self.row, number)));
        epochs.push_front(Arc::clone(&epoch));
        epochs.truncate(EPOCHS);
        epoch
    }

    /// The index at one position of the order.
    pub(super) fn index(&self, epoch: u64, position: u64) -> u64 {
        let tracks = self.row.tracks();
        let (track, place) = (position % tracks, position / tracks);
        let (number, at) = (place / CHUNK as u64, (place % CHUNK as u64) as usize);
        let mut chunks = self.next[track as usize].lock();
        if chunks.is_empty() {
            *chunks = vec![Chunk::NONE; self.chunks].into_boxed_slice();
        }
        let chunk = &mut chunks[number as usize % self.chunks];
        if (chunk.epoch, chunk.number) != (epoch, number) {
            self.of_track(epoch, track, number * CHUNK as u64, &mut chunk.indices);
            (chunk.epoch, chunk.number) = (epoch, number);
        }
        chunk.indices[at]
    }

    /// The indices at the positions from `start` on, all of which there are.
    pub(super) fn indices(&self, epoch: u64, start: u64, indices: &mut [u64]) {
        let tracks = self.row.tracks();
        // Where each track has a good number of them, they are computed by track.
        if (indices.len() as u64) / 16 < tracks {
            for (index, position) in indices.iter_mut().zip(start..) {
                *index = self.index(epoch, position);
            }
            return;
        }
        let mut chunk = [0; CHUNK];
        for first in start..start + tracks {
            let (track, mut place) = (first % tracks, first / tracks);
            let mut places = indices[(first - start) as usize..]
                .iter_mut()
                .step_by(tracks as usize);
            while places.len() > 0 {
                let chunk = &mut chunk[..CHUNK.min(places.len())];
                self.of_track(epoch, track, place, chunk);
                place += chunk.len() as u64;
                // (The chunk comes first: it ends before another place is taken.)
                for (found, index) in chunk.iter().zip(places.by_ref()) {
                    *index = *found;
                }
            }
        }
    }

    /// The indices at a track's places from `place` on.
    fn of_track(&self, epoch: u64, track: u64, place: u64, indices: &mut [u64]) {
        let known = self.epoch(epoch).track(&self.row, track);
        known.indices(&self.row, epoch, place, indices);
    }
}
