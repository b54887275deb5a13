//! How large slabs of one kind are made.
//!
//! Where all batches have one size, slabs are as large as a batch and not a byte more. Where batches grow (a curriculum, an evaluation
//! that is sorted by length), every slab would soon be too small, and page-locking takes longer than filling one. So from the second time
//! on that a batch is larger than all before, slabs are made a quarter larger than it, if there is room for that: then few sizes come
//! between the smallest batch and the largest. (Not the first time: an epoch may begin with a short batch, the rest of one that was
//! interrupted.)

use crate::device::{Kind, block_bytes};
use crate::sync::{AtomicUsize, Ordering};

/// How large they are now. All accesses are relaxed: these are hints.
#[derive(Debug, Default)]
pub(crate) struct SlabSize {
    /// The largest that was wanted or made; 0 before the first.
    bytes: AtomicUsize,
    /// How often a batch was larger than that.
    outgrown: AtomicUsize,
}

impl SlabSize {
    /// How large a slab is made; 0 before the first.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How large a slab is made for a batch of so many bytes. `has_room`: whether the budgets have room for all slabs that there may be if
    /// they are so large.
    pub(crate) fn for_batch(&self, bytes: usize, has_room: impl FnOnce(usize) -> bool) -> usize {
        let largest = self.bytes();
        if bytes <= largest {
            return largest;
        }
        let grown = bytes.saturating_add(bytes / 4);
        let grows = self.outgrown.load(Ordering::Relaxed) > 0;
        match grows && has_room(grown) {
            true => grown,
            false => bytes,
        }
    }

    /// A slab of that size was taken for several batches: others, made before they are asked for, are to be as large. No batch was larger
    /// than before. `true`: later ones will be.
    pub(crate) fn saw_run(&self, bytes: usize) -> bool {
        // (All workers read this number: what does not change it is not written.)
        self.bytes() < bytes && self.bytes.fetch_max(bytes, Ordering::Relaxed) < bytes
    }

    /// A slab of that size was taken. `true`: later ones will be larger than before.
    pub(crate) fn saw(&self, bytes: usize) -> bool {
        if self.bytes() >= bytes {
            return false;
        }
        let before = self.bytes.fetch_max(bytes, Ordering::Relaxed);
        let is_larger = before < bytes;
        if is_larger && before > 0 {
            self.outgrown.fetch_add(1, Ordering::Relaxed);
        }
        is_larger
    }
}

/// How large a loader's slabs are.
#[derive(Debug)]
pub(crate) struct SlabSizes {
    of_kind: [SlabSize; 2],
    pub(crate) run: SlabSize,
    /// How many bytes may be in flight, if they are limited.
    most_bytes: Option<usize>,
}

impl SlabSizes {
    pub(crate) fn new(most_bytes: Option<usize>) -> SlabSizes {
        SlabSizes {
            of_kind: Default::default(),
            run: SlabSize::default(),
            most_bytes,
        }
    }

    pub(crate) fn of(&self, kind: Kind) -> &SlabSize {
        &self.of_kind[kind as usize]
    }

    /// How many slabs there are to be: as many as bytes in flight have room for, one that cannot wait, and one with the program.
    pub(crate) fn within(&self, kind: Kind) -> usize {
        let bytes = self.of(kind).bytes();
        match self.most_bytes {
            Some(most) if bytes > 0 => {
                let bytes = block_bytes(bytes).unwrap_or(bytes);
                (most / bytes).max(1).saturating_add(2)
            }
            _ => usize::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which slabs are made for batches of these sizes, if each is as large as those before or larger than its slab.
    fn made(batches: impl IntoIterator<Item = usize>, most: usize) -> Vec<usize> {
        let size = SlabSize::default();
        let mut made = Vec::new();
        for bytes in batches {
            let slab = size.for_batch(bytes, |bytes| bytes <= most);
            if size.saw(slab) {
                made.push(slab);
            }
        }
        made
    }

    #[test]
    fn one_size_takes_not_a_byte_more() {
        assert_eq!(made([1000; 50], usize::MAX), [1000]);
        // Nor if the first or the last batch is short.
        assert_eq!(made([1000, 1000, 7, 1000], usize::MAX), [1000]);
        assert_eq!(made([7, 1000, 1000, 7, 1000], usize::MAX), [7, 1000]);
    }

    #[test]
    fn what_grows_comes_in_few_sizes() {
        let few = made(1000..=100_000, usize::MAX);
        assert_eq!(few[..4], [1000, 1001, 1252, 1566]);
        assert!(few.len() <= 3 + 21, "{few:?}"); // log(100) / log(1.25)
    }

    /// A batch is far larger than those that share a slab, and no other follows that is larger: it is not the second time.
    #[test]
    fn runs_do_not_count_as_batches_that_grow() {
        let size = SlabSize::default();
        let wanted = |bytes| size.for_batch(bytes, |_| true);
        assert!(size.saw(100) && size.saw_run(800) && size.saw_run(1600) && !size.saw_run(800));
        assert_eq!((wanted(100), wanted(1700)), (1600, 1700));
        assert!(size.saw(1700));
        assert_eq!(wanted(2000), 2500);
    }

    #[test]
    fn it_grows_into_no_more_than_there_is() {
        let sizes = made((1000..=1500).step_by(100), 1400);
        assert_eq!(sizes, [1000, 1100, 1200, 1300, 1400, 1500]);
        let sizes = made([1000, 1100, 1101, 1377, usize::MAX], 1400);
        assert_eq!(sizes, [1000, 1100, 1376, 1377, usize::MAX]);
    }
}
