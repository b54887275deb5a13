//! How an epoch's samples are cut: into batches, and where batches travel in parts, these into parts.

/// The units of a schedule: parts of batches. Most often a batch is one part; where large batches go to a device without
/// the program seeing them, each is cut into several, so that few slabs are filled in turn and stay in the processor's
/// cache until the device has read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    samples: u64,
    batch_size: usize,
    /// The rows of a part; the last part of a batch may have fewer.
    part_rows: usize,
    batches: u64,
}

impl Cut {
    /// Batches of one part each.
    pub(crate) fn whole(samples: u64, batch_size: usize, drop_last: bool) -> Cut {
        let size = batch_size as u64;
        let batches = match drop_last {
            true => samples / size,
            false => samples.div_ceil(size),
        };
        // A lone batch that the samples do not fill has no more rows than there are samples.
        let batch_size = u64::min(size, samples.max(1)) as usize;
        Cut {
            samples,
            batch_size,
            part_rows: batch_size,
            batches,
        }
    }

    /// The same batches, in so many parts of about the same size.
    pub(crate) fn into_parts(self, parts: usize) -> Cut {
        let parts = parts.clamp(1, self.batch_size);
        Cut {
            part_rows: self.batch_size.div_ceil(parts),
            ..self
        }
    }

    /// How many batches there are.
    pub(crate) fn batches(&self) -> u64 {
        self.batches
    }

    /// How many parts a full batch has.
    pub(crate) fn parts(&self) -> u64 {
        self.batch_size.div_ceil(self.part_rows) as u64
    }

    /// How many parts all batches have together.
    pub(crate) fn count(&self) -> u64 {
        let Some(last) = self.batches.checked_sub(1) else {
            return 0;
        };
        let in_last = self.batch_rows(last).div_ceil(self.part_rows) as u64;
        last.saturating_mul(self.parts()).saturating_add(in_last)
    }

    /// How many samples a batch has.
    pub(crate) fn batch_rows(&self, batch: u64) -> usize {
        let start = batch * self.batch_size as u64;
        (self.samples - start).min(self.batch_size as u64) as usize
    }

    /// The batch that a part belongs to.
    pub(crate) fn batch_of(&self, part: u64) -> u64 {
        part / self.parts()
    }

    /// Which of its batch's rows a part begins with.
    pub(crate) fn first_row(&self, part: u64) -> usize {
        (part % self.parts()) as usize * self.part_rows
    }

    /// How many rows a part has.
    pub(crate) fn rows(&self, part: u64) -> usize {
        let rows = self.batch_rows(self.batch_of(part)) - self.first_row(part);
        rows.min(self.part_rows)
    }

    /// The position of a part's first sample in the epoch's order.
    pub(crate) fn start(&self, part: u64) -> u64 {
        self.batch_of(part) * self.batch_size as u64 + self.first_row(part) as u64
    }

    /// Whether a part is its batch's last.
    pub(crate) fn ends_batch(&self, part: u64) -> bool {
        self.first_row(part) + self.rows(part) == self.batch_rows(self.batch_of(part))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The parts of all batches, one behind the other, are the epoch's samples.
        #[test]
        fn parts_make_up_their_batches(
            samples in 0..2_000u64, batch_size in 1..300usize, parts in 0..40usize, drop_last: bool
        ) {
            let whole = Cut::whole(samples, batch_size, drop_last);
            let cut = whole.into_parts(parts);
            prop_assert_eq!(cut.batches(), whole.count());
            let (mut position, mut ended) = (0, 0);
            for part in 0..cut.count() {
                prop_assert_eq!(cut.start(part), position);
                prop_assert!((1..=cut.part_rows).contains(&cut.rows(part)));
                prop_assert_eq!(cut.batch_of(part), ended);
                prop_assert_eq!(cut.batch_of(part) * batch_size as u64 + cut.first_row(part) as u64, position);
                position += cut.rows(part) as u64;
                ended += u64::from(cut.ends_batch(part));
            }
            prop_assert_eq!(ended, cut.batches());
            let last_rows = if drop_last { samples / batch_size as u64 * batch_size as u64 } else { samples };
            prop_assert_eq!(position, last_rows);
            prop_assert!(cut.parts() as usize <= parts.max(1));
            prop_assert_eq!(cut, whole.into_parts(cut.parts() as usize));
        }
    }
}
