//! How long and how often things are measured.

use std::time::{Duration, Instant};

use crate::Result;
use crate::report::Figure;

/// How much time a run takes.
#[derive(Debug, Clone)]
pub struct Effort {
    /// How often each copy is measured, after one measurement that does not count.
    pub repeats: usize,
    /// The sizes of copies.
    pub sizes: Vec<usize>,
    /// How much memory is page-locked at once to see what that costs.
    pub locked_bytes: usize,
    /// How often page-locking is measured, and everything that runs for a `window`.
    pub windows: usize,
    pub window: Duration,
    /// How long one thing is measured at most: on a busy machine, less often than said above.
    pub patience: Duration,
    /// How many pictures are drawn.
    pub pictures: usize,
}

impl Effort {
    /// `usable_bytes` is the memory that the process may use, if that is known: copies take a sixteenth of it at most.
    pub fn new(quick: bool, usable_bytes: Option<u64>) -> Effort {
        let most = usable_bytes.map_or(usize::MAX, |bytes| (bytes / 16) as usize);
        let largest = if quick { 64 << 20 } else { 256 << 20 };
        let step = if quick { 4 } else { 2 }; // in powers of two
        let sizes = (12..).step_by(step).map(|power| 1usize << power);
        let sizes =
            sizes.take_while(|bytes| *bytes <= largest && (*bytes <= most || *bytes == 4096));
        let mut sizes: Vec<usize> = sizes.collect();
        if quick && sizes.last().is_some_and(|last| *last < largest) && largest <= most {
            sizes.push(largest);
        }
        Effort {
            repeats: if quick { 3 } else { 7 },
            sizes,
            locked_bytes: largest.min(most).max(1 << 20),
            windows: if quick { 3 } else { 5 },
            window: Duration::from_millis(if quick { 60 } else { 250 }),
            patience: Duration::from_millis(if quick { 400 } else { 2_000 }),
            pictures: if quick { 8 } else { 24 },
        }
    }
}

impl Effort {
    /// Measures so often, after once that does not count; less often, but once at least, if that takes too long.
    pub fn repeat(
        &self,
        repeats: usize,
        mut measure: impl FnMut() -> Result<f64>,
    ) -> Result<Figure> {
        let begun = Instant::now();
        measure()?;
        let mut values = Vec::new();
        while values.len() < repeats && (values.is_empty() || begun.elapsed() < self.patience) {
            values.push(measure()?);
        }
        figure(values).ok_or_else(|| "nothing was measured".into())
    }
}

/// The median of these values, the upper one of two in the middle; `None` if there are none.
pub fn figure(mut values: Vec<f64>) -> Option<Figure> {
    values.sort_by(f64::total_cmp);
    Some(Figure {
        median: *values.get(values.len() / 2)?,
        least: *values.first()?,
        most: *values.last()?,
        repeats: values.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_of_what_counts() {
        let mut values = [100.0, 3.0, 1.0, 2.0].into_iter();
        let figure = Effort::new(true, None).repeat(3, || Ok(values.next().unwrap_or(f64::NAN)));
        let expected = Figure {
            median: 2.0,
            least: 1.0,
            most: 3.0,
            repeats: 3,
        };
        assert_eq!(figure.ok(), Some(expected));
        assert_eq!(super::figure(Vec::new()), None);
        let impatient = Effort {
            patience: Duration::ZERO,
            ..Effort::new(true, None)
        };
        let figure = impatient.repeat(3, || Ok(1.0));
        assert_eq!(figure.map(|figure| figure.repeats).ok(), Some(1));
    }

    #[test]
    fn sizes_go_from_4_kib_to_the_largest_that_memory_has_room_for() {
        let full = Effort::new(false, None).sizes;
        assert_eq!((full[0], full[full.len() - 1]), (4 << 10, 256 << 20));
        assert_eq!(full.len(), 9);
        let quick = Effort::new(true, Some(64 << 30)).sizes;
        assert_eq!((quick[0], quick[quick.len() - 1]), (4 << 10, 64 << 20));
        let small = Effort::new(false, Some(512 << 20));
        assert_eq!(small.sizes.last(), Some(&(16 << 20)));
        assert_eq!(small.locked_bytes, 32 << 20);
        assert_eq!(Effort::new(true, Some(0)).sizes, [4096]);
    }
}
