//! Soft labels: each label becomes a row with a number for each class.

use super::Kernel;
#[cfg(feature = "cuda")]
use super::{Argument, Launch, normalize::MIX};

/// Labels, and the values that their rows are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Labelling {
    /// `rows` labels, as `i64`.
    pub(crate) from: u64,
    /// `rows` x `classes` numbers.
    pub(crate) to: u64,
    pub(crate) rows: u64,
    pub(crate) classes: u64,
    /// The size of a number: 2 or 4.
    pub(crate) element_bytes: usize,
    /// Whether each row is mixed with the one before (the first one with the last).
    pub(crate) is_mixed: bool,
    pub(crate) weights: Weights,
}

/// The numbers that rows consist of, as bits in the low half or all of each word. It is passed to the kernel as it is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Weights {
    /// For a class that is neither label.
    pub(crate) none: u32,
    /// For the row's own label.
    pub(crate) own: u32,
    /// For the label that it is mixed with.
    pub(crate) other: u32,
    /// For a class that is both.
    pub(crate) both: u32,
    /// For all classes of a row with a label that is not a class.
    pub(crate) invalid: u32,
}

impl Kernel for Labelling {
    unsafe fn run(&self) {
        match self.element_bytes {
            // SAFETY: the caller's contract, for numbers of that size.
            2 => unsafe { self.weigh(|bits| bits as u16) },
            // SAFETY: likewise; there is no third size.
            _ => unsafe { self.weigh(|bits| bits) },
        }
    }

    #[cfg(feature = "cuda")]
    fn launch(&self) -> Launch<'_> {
        let is_mixed: &u32 = match self.is_mixed {
            true => &1,
            false => &0,
        };
        let counts = [&self.from, &self.to, &self.rows, &self.classes];
        let mut arguments: Vec<_> = counts.into_iter().map(Argument::new).collect();
        arguments.extend([Argument::new(is_mixed), Argument::new(&self.weights)]);
        Launch {
            purpose: "making soft labels",
            ptx: MIX,
            function: match self.element_bytes {
                2 => c"pinfeed_labels_16",
                _ => c"pinfeed_labels_32",
            },
            items: self.rows * self.classes,
            arguments,
        }
    }
}

impl Labelling {
    /// # Safety
    ///
    /// As `run`; `B` must have the size of the target's numbers.
    unsafe fn weigh<B>(&self, number: fn(u32) -> B) {
        let Labelling { weights, .. } = *self;
        let (rows, classes) = (self.rows as usize, self.classes as usize);
        // SAFETY: the caller's contract: there are that many labels, and nothing writes them now.
        let labels = unsafe { std::slice::from_raw_parts(self.from as *const i64, rows) };
        // SAFETY: the caller's contract: there are that many numbers, aligned, and nothing else uses them now.
        let to = unsafe { std::slice::from_raw_parts_mut(self.to as *mut B, rows * classes) };
        for (row, to) in to.chunks_exact_mut(classes).enumerate() {
            let own = labels[row];
            let other = match self.is_mixed {
                true => labels[(row + rows - 1) % rows],
                false => own,
            };
            let is_class = |label: i64| usize::try_from(label).is_ok_and(|label| label < classes);
            let is_valid = is_class(own) && is_class(other);
            for (class, to) in to.iter_mut().enumerate() {
                let (is_own, is_other) = (own == class as i64, other == class as i64);
                *to = number(match (is_own, is_other && self.is_mixed) {
                    _ if !is_valid => weights.invalid,
                    (false, false) => weights.none,
                    (true, false) => weights.own,
                    (false, true) => weights.other,
                    (true, true) => weights.both,
                });
            }
        }
    }
}
