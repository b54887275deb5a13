//! The idle blocks of a ring, by size: there may be thousands.

use crate::device::host_memory::HostBlock;

/// Idle blocks of one kind.
#[derive(Default)]
pub(super) struct Idle {
    /// Those that are page-locked, and the others: the last choice.
    pinned: BySize,
    pageable: BySize,
}

/// Blocks, the smallest first; of equal ones, that which came back last is the last. Nearly always all are of one size, so that one that
/// comes or goes is at the end, or few are behind it.
#[derive(Default)]
struct BySize {
    blocks: Vec<HostBlock>,
    bytes: usize,
}

impl BySize {
    fn push(&mut self, block: HostBlock) {
        let bytes = block.capacity();
        self.bytes += bytes;
        let place = self.end_of(bytes);
        self.blocks.insert(place, block);
    }

    /// The smallest block that has so many bytes. Of equal ones the last, which may still be in the cache.
    fn best(&self, size: usize) -> Option<usize> {
        let is_too_small = |block: &HostBlock| block.capacity() < size;
        let first = match is_too_small(self.blocks.first()?) {
            true => self.blocks.partition_point(is_too_small),
            false => 0, // as nearly always
        };
        let bytes = self.blocks.get(first)?.capacity();
        Some(self.end_of(bytes) - 1)
    }

    /// Behind the last block that is no larger than this.
    fn end_of(&self, bytes: usize) -> usize {
        match self.blocks.last() {
            Some(last) if last.capacity() > bytes => self
                .blocks
                .partition_point(|block| block.capacity() <= bytes),
            _ => self.blocks.len(),
        }
    }

    fn take(&mut self, place: usize) -> HostBlock {
        let block = self.blocks.remove(place);
        self.bytes -= block.capacity();
        block
    }

    fn largest_bytes(&self) -> Option<usize> {
        self.blocks.last().map(HostBlock::capacity)
    }
}

impl Idle {
    pub(super) fn push(&mut self, block: HostBlock) {
        match block.is_pinned() {
            true => self.pinned.push(block),
            false => self.pageable.push(block),
        }
    }

    /// Takes the smallest block that has `size` bytes and no more than `most`.
    pub(super) fn take_best(&mut self, size: usize, most: usize) -> Option<HostBlock> {
        let kinds = [&mut self.pinned, &mut self.pageable];
        kinds.into_iter().find_map(|kind| {
            let best = kind.best(size)?;
            let fits = kind.blocks[best].capacity() <= most;
            fits.then(|| kind.take(best))
        })
    }

    /// The size of the smallest block that has so many bytes.
    pub(super) fn best_bytes(&self, size: usize) -> Option<usize> {
        let kinds = [&self.pinned, &self.pageable];
        let best = kinds.map(|kind| Some(kind.blocks[kind.best(size)?].capacity()));
        best.into_iter().flatten().min()
    }

    /// Takes the block that is least likely to be large enough for a request.
    pub(super) fn take_smallest(&mut self) -> Option<HostBlock> {
        let kinds = [&mut self.pinned, &mut self.pageable];
        let kind = kinds.into_iter().find(|kind| !kind.blocks.is_empty())?;
        Some(kind.take(0))
    }

    /// Takes the block that makes the most room, so that few have to go; of equal ones, one that is not page-locked.
    pub(super) fn take_largest(&mut self) -> Option<HostBlock> {
        let kind = match self.pinned.largest_bytes() > self.pageable.largest_bytes() {
            true => &mut self.pinned,
            false => &mut self.pageable,
        };
        let last = kind.blocks.len().checked_sub(1)?;
        Some(kind.take(last))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.pinned.blocks.len() + self.pageable.blocks.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.pinned.bytes + self.pageable.bytes
    }

    /// Of those that are page-locked.
    pub(super) fn pinned_bytes(&self) -> usize {
        self.pinned.bytes
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
