//! The blocks of a run in one row, and the stretch of it that each track has: the same in all epochs.

use std::ops::Range;

use super::Blocks;
use super::track::Key;
use crate::sampler::permutation::Permutation;
use crate::sync::{Arc, OnceLock};

/// All blocks in a random order, cut into stretches of equal length: one for each track.
pub(super) struct Row {
    blocks: Arc<Blocks>,
    seed: u64,
    /// No more than there are samples, and no less than one.
    tracks: u64,
    /// Where the blocks of listed sizes begin in the row, and where the last ends. Made when it is first needed: 8 bytes a block.
    starts: OnceLock<Vec<u64>>,
}

/// How many blocks are looked up in the order at once.
const AT_ONCE: usize = 1 << 10;

impl Row {
    pub(super) fn new(blocks: Arc<Blocks>, tracks: u64, seed: u64) -> Row {
        Row {
            tracks: tracks.clamp(1, blocks.samples().max(1)),
            blocks,
            seed,
            starts: OnceLock::new(),
        }
    }

    pub(super) fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn tracks(&self) -> u64 {
        self.tracks
    }

    /// How many samples a track has.
    pub(super) fn len_of(&self, track: u64) -> u64 {
        let samples = self.blocks.samples();
        samples / self.tracks + u64::from(track < samples % self.tracks)
    }

    /// The samples that a track reads of each block, in the row's order: none is empty.
    pub(super) fn pieces(&self, track: u64) -> Vec<Range<u64>> {
        let samples = self.blocks.samples();
        let start = track * (samples / self.tracks) + track.min(samples % self.tracks);
        let stretch = start..start + self.len_of(track);
        if stretch.is_empty() {
            return Vec::new();
        }
        let places = self.place_of(stretch.start)..self.place_of(stretch.end - 1) + 1;
        let mut pieces = Vec::new();
        self.each_block(places, |place, block| {
            let start = self.start(place);
            let size = self.blocks.range(block);
            let from = stretch.start.max(start) - start;
            let to = stretch.end.min(start + (size.end - size.start)) - start;
            if from < to {
                pieces.push(size.start + from..size.start + to);
            }
        });
        pieces
    }

    /// Calls `f` with places in the row, and the block at each.
    fn each_block(&self, places: Range<u64>, mut f: impl FnMut(u64, u64)) {
        let shuffled = self.shuffled();
        let order = Permutation::keyed(shuffled, Key::Row.of(self.seed));
        let (mut at_once, mut next) = ([0; AT_ONCE], places.start);
        while next < places.end {
            let count = (places.end - next).min(AT_ONCE as u64);
            let blocks = &mut at_once[..count as usize];
            for (block, place) in blocks.iter_mut().zip(next..) {
                *block = place;
            }
            let inner = usize::try_from(shuffled.saturating_sub(next)).unwrap_or(usize::MAX);
            let inner = inner.min(blocks.len());
            order.apply(&mut blocks[..inner]);
            blocks
                .iter()
                .zip(next..)
                .for_each(|(block, place)| f(place, *block));
            next += count;
        }
    }

    /// How many of the first blocks are shuffled. Of even ones, all that are whole: a smaller last one is the row's last, too, so that
    /// places in the row are computed.
    fn shuffled(&self) -> u64 {
        match self.blocks.even_size() {
            Some(size) => self.blocks.samples() / size,
            None => self.blocks.len(),
        }
    }

    /// Where the block at a place begins.
    fn start(&self, place: u64) -> u64 {
        match self.blocks.even_size() {
            Some(_) => self.blocks.start(place),
            None => self.starts()[place as usize],
        }
    }

    /// The place whose block has this sample of the row.
    fn place_of(&self, sample: u64) -> u64 {
        match self.blocks.even_size() {
            Some(size) => sample / size,
            None => self.starts().partition_point(|start| *start <= sample) as u64 - 1,
        }
    }

    fn starts(&self) -> &[u64] {
        self.starts.get_or_init(|| {
            let mut starts = Vec::with_capacity(self.blocks.len() as usize + 1);
            let mut end = 0;
            starts.push(end);
            self.each_block(0..self.blocks.len(), |_, block| {
                let samples = self.blocks.range(block);
                end += samples.end - samples.start;
                starts.push(end);
            });
            starts
        })
    }
}
