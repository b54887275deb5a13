//! What is kept of the order: the tracks' pieces in three epochs, and of each track the indices that come next.

use std::collections::VecDeque;

use super::row::Row;
use super::track::Track;
use crate::sync::{Arc, Mutex, OnceLock};

/// How many indices of a track are computed together. A permutation is a key of up to 32 rounds, and then a few nanoseconds a sample.
const CHUNK: usize = 64;

/// How many such chunks of a track are kept: workers and announcements are at different places of it.
const CHUNKS: usize = 4;

/// How many epochs' tracks are kept: those of the epoch that the program is at, of the next, which begins early, and of the one behind
/// that, which a cache asks for.
const EPOCHS: usize = 3;

/// The order of a run, and what of it is known. All of that follows from the row: threads that need the same thing at the same time may
/// each compute it, and none waits for another longer than it takes to look.
pub(super) struct Known {
    pub(super) row: Row,
    epochs: Mutex<VecDeque<Arc<Epoch>>>,
    /// By track. Taken if it is free: a thread that finds another there computes its index by itself.
    next: Box<[Mutex<Chunks>]>,
}

/// The tracks of an epoch, as far as they were asked for.
pub(super) struct Epoch {
    pub(super) number: u64,
    tracks: Box<[OnceLock<Arc<Track>>]>,
}

/// Chunks of a track, each in the place that its number has.
type Chunks = Option<Box<[Chunk; CHUNKS]>>;

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
        let Some(mut chunks) = self.next[track as usize].try_lock() else {
            let mut index = [0];
            self.of_track(epoch, track, place, &mut index);
            return index[0];
        };
        let chunks = chunks.get_or_insert_with(|| Box::new([Chunk::NONE; CHUNKS]));
        let chunk = &mut chunks[number as usize % CHUNKS];
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
