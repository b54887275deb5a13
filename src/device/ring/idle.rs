//! The idle blocks of a ring, by size: there may be thousands.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::device::host_memory::HostBlock;

/// Idle blocks of one kind.
#[derive(Default)]
pub(super) struct Idle {
    blocks: BTreeMap<Place, HostBlock>,
    /// How many have come.
    came: u64,
    bytes: usize,
    pinned_bytes: usize,
}

/// Whether a block is pageable, how large it is, and how many came before it. So the first that is large enough is the best: one that is not
/// page-locked is the last choice, and of equal ones, the one that came back last may still be in the cache.
type Place = (bool, usize, Reverse<u64>);

impl Idle {
    pub(super) fn push(&mut self, block: HostBlock) {
        let (is_pageable, bytes) = (!block.is_pinned(), block.capacity());
        self.came += 1;
        self.bytes += bytes;
        self.pinned_bytes += if is_pageable { 0 } else { bytes };
        let place = (is_pageable, bytes, Reverse(self.came));
        self.blocks.insert(place, block);
    }

    /// Takes the smallest block that has `size` bytes and no more than `most`.
    pub(super) fn take_best(&mut self, size: usize, most: usize) -> Option<HostBlock> {
        let best = [false, true].map(|is_pageable| {
            let first = self.first(is_pageable, size)?;
            (first.1 <= most).then_some(first)
        });
        let best = best.into_iter().flatten().next()?;
        self.take(best)
    }

    /// The size of the smallest block that has so many bytes.
    pub(super) fn best_bytes(&self, size: usize) -> Option<usize> {
        let both = [false, true].map(|is_pageable| self.first(is_pageable, size));
        both.into_iter().flatten().map(|(_, bytes, _)| bytes).min()
    }

    /// Takes the block that is least likely to be large enough for anybody.
    pub(super) fn take_smallest(&mut self) -> Option<HostBlock> {
        let first = self.blocks.keys().next().copied()?;
        self.take(first)
    }

    /// Takes the block that makes most room, so that few have to go; of equal ones, one that is not page-locked.
    pub(super) fn take_largest(&mut self) -> Option<HostBlock> {
        let first_pageable = (true, 0, Reverse(u64::MAX));
        let pinned = self.blocks.range(..first_pageable).next_back();
        let pageable = self.blocks.range(first_pageable..).next_back();
        let lasts = [pinned, pageable].into_iter().flatten();
        let largest = lasts.map(|(place, _)| *place).max_by_key(|place| place.1)?;
        self.take(largest)
    }

    fn first(&self, is_pageable: bool, size: usize) -> Option<Place> {
        let from = (is_pageable, size, Reverse(u64::MAX));
        let to = (is_pageable, usize::MAX, Reverse(0));
        let mut fit = self.blocks.range(from..=to);
        fit.next().map(|(place, _)| *place)
    }

    fn take(&mut self, place: Place) -> Option<HostBlock> {
        let block = self.blocks.remove(&place)?;
        let (is_pageable, bytes, _) = place;
        self.bytes -= bytes;
        self.pinned_bytes -= if is_pageable { 0 } else { bytes };
        Some(block)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Of those that are page-locked.
    pub(super) fn pinned_bytes(&self) -> usize {
        self.pinned_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Driver;

    const PAGE: usize = 1 << 12;

    fn blocks() -> Idle {
        let driver = Driver::Cpu(crate::driver::cpu::Cpu::new(None));
        let mut idle = Idle::default();
        for pages in [3, 1, 2, 2] {
            let block = HostBlock::pinned(&driver, pages * PAGE, &|_, _| {});
            idle.push(block.ok().unwrap());
        }
        let pageable = HostBlock::pageable(2 * PAGE, &|_, _| {});
        idle.push(pageable.unwrap());
        idle
    }

    #[test]
    fn the_smallest_that_fits_is_taken_and_the_one_that_came_last() {
        let mut idle = blocks();
        assert_eq!((idle.len(), idle.bytes()), (5, 10 * PAGE));
        assert_eq!(idle.pinned_bytes(), 8 * PAGE);
        assert_eq!(idle.best_bytes(PAGE + 1), Some(2 * PAGE));
        assert!(idle.take_best(3 * PAGE, 2 * PAGE).is_none());
        assert!(idle.take_best(4 * PAGE, usize::MAX).is_none());
        let mut take = || idle.take_best(2 * PAGE, usize::MAX).unwrap();
        let (first, second, third, last) = (take(), take(), take(), take());
        assert_eq!([&first, &second].map(HostBlock::capacity), [2 * PAGE; 2]);
        assert!(first.is_pinned() && second.is_pinned());
        assert_eq!((third.capacity(), third.is_pinned()), (3 * PAGE, true));
        assert_eq!((last.capacity(), last.is_pinned()), (2 * PAGE, false));
        // What came back last is taken first.
        let address = first.base();
        idle.push(second);
        idle.push(first);
        assert_eq!(idle.take_best(1, 2 * PAGE).unwrap().capacity(), PAGE);
        assert_eq!(idle.take_best(1, 2 * PAGE).unwrap().base(), address);
    }

    #[test]
    fn what_goes_is_counted() {
        let mut idle = blocks();
        assert_eq!(idle.take_smallest().unwrap().capacity(), PAGE);
        assert_eq!(idle.take_largest().unwrap().capacity(), 3 * PAGE); // though another is pageable
        assert!(!idle.take_largest().unwrap().is_pinned()); // of those that are equally large
        assert_eq!((idle.bytes(), idle.pinned_bytes()), (4 * PAGE, 4 * PAGE));
        while idle.take_smallest().is_some() {}
        assert!(idle.is_empty() && idle.bytes() == 0 && idle.pinned_bytes() == 0);
    }
}
