//! Pictures that stay encoded: the row of the batch is made on the device, or on the host if it is read there.
//!
//! A picture's file lies in its own row, if it fits. That is page-locked memory, from which a decoder copies a file in a seventh of the
//! time (2.7 us instead of 21 for 110 KB, nvJPEG on an H200), and it is there anyway.

use std::fmt;
use std::ops::Range;

use crate::meter::{Meter, Reasons};
use crate::picture::{EncodedPicture, Steps};
use crate::sync::{AtomicBool, Mutex, Ordering};

/// A row whose picture is not decoded yet.
#[derive(Debug)]
pub(crate) struct PictureRow {
    /// Its number, among the rows of its batch or part.
    pub(crate) row: usize,
    /// What becomes of its pixels. Only this counts, whatever the picture says later.
    pub(crate) steps: Steps,
    pub(crate) picture: Box<dyn EncodedPicture>,
    pub(super) file: EncodedFile,
}

/// Where a picture's file is, in the one form that a decoder is given.
pub(super) enum EncodedFile {
    /// It is the row's first bytes.
    InRow(usize),
    /// It is larger than the row.
    Elsewhere(Box<dyn AsRef<[u8]> + Send + Sync>),
}

impl fmt::Debug for EncodedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodedFile::InRow(bytes) => write!(f, "{bytes} bytes in the row"),
            EncodedFile::Elsewhere(file) => write!(f, "{} bytes", (**file).as_ref().len()),
        }
    }
}

/// Those of a batch that is being filled.
#[derive(Debug, Default)]
pub(super) struct Pictures {
    noted: Mutex<Vec<Noted>>,
    /// Some are shared by the device and the CPU. (Relaxed: it is read by the thread that finishes the batch, and the lock of the shared
    /// state synchronizes the two.)
    are_shared: AtomicBool,
}

/// What a row of a field was left to hold: a picture, or, as `None`, what was written there.
#[derive(Debug)]
struct Noted {
    field: usize,
    row: usize,
    content: Content,
}

/// What a row has.
#[derive(Debug)]
pub(super) enum Content {
    Picture(Steps, Box<dyn EncodedPicture>, EncodedFile),
    Pixels,
    /// Pixels, for the device does not decode the picture.
    PixelsBecause(&'static str),
}

/// How a device decoded pictures: in how many nanoseconds, and whether kernels did it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DecodedIn {
    pub(crate) ns: u64,
    pub(crate) by_kernels: bool,
}

impl Pictures {
    /// Notes what a row has now: the sample that it had before may have failed.
    pub(super) fn note(&self, field: usize, row: usize, content: Content) {
        let noted = Noted {
            field,
            row,
            content,
        };
        self.noted.lock().push(noted);
    }

    /// Notes that the device and the CPU share some.
    pub(super) fn share(&self) {
        self.are_shared.store(true, Ordering::Relaxed);
    }

    /// Takes out those of a field, in the order of their rows; and why the CPU decoded others, of all fields. These are counted at once if
    /// there are no pictures, and otherwise with those: a batch whose pictures turn out to be bad is made again, and counts for nothing.
    pub(super) fn take(&self, field: usize, meter: Option<&Meter>) -> (Vec<PictureRow>, Reasons) {
        if let (Some(meter), true) = (meter, self.are_shared.load(Ordering::Relaxed)) {
            meter.shares_pictures.store(true, Ordering::Relaxed);
        }
        // (Without the lock: pictures may be dropped here.)
        let mut all = std::mem::take(&mut *self.noted.lock());
        // Of one row, the last holds.
        all.reverse();
        all.sort_by_key(|noted| (noted.field, noted.row));
        all.dedup_by_key(|noted| (noted.field, noted.row));
        let of_field = all.extract_if(.., |noted| {
            noted.field == field && matches!(noted.content, Content::Picture(..))
        });
        let pictures = of_field.filter_map(|noted| match noted.content {
            Content::Picture(steps, picture, file) => Some(PictureRow {
                row: noted.row,
                steps,
                picture,
                file,
            }),
            _ => None,
        });
        let pictures: Vec<PictureRow> = pictures.collect();
        let mut reasons = Reasons::new();
        let are_elsewhere = |noted: &Noted| matches!(noted.content, Content::Picture(..));
        if !pictures.is_empty() || !all.iter().any(are_elsewhere) {
            for noted in all.extract_if(.., |noted| !are_elsewhere(noted)) {
                if let Content::PixelsBecause(reason) = noted.content {
                    *reasons.entry(reason).or_default() += 1;
                }
            }
        }
        *self.noted.lock() = all;
        if pictures.is_empty()
            && let Some(meter) = meter
        {
            meter.leave_to_cpu(&std::mem::take(&mut reasons));
        }
        (pictures, reasons)
    }
}

/// The rows that have pixels, of so many, in ranges. Those of the pictures, which come in ascending order, are left out, unless fewer than
/// `least_gap` lie between two rows that have pixels.
pub(super) fn rows_of_pixels(
    rows: usize,
    pictures: impl Iterator<Item = usize>,
    least_gap: usize,
) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for end in pictures.chain([rows]) {
        if start < end {
            match ranges.last_mut() {
                Some(last) if start - last.end < least_gap => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        start = end + 1;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Drawing, Filter, Sampling};

    /// A single pixel.
    const DRAWING: Drawing = Drawing {
        source: [1; 2],
        sampling: Sampling::None,
        bounds: [0, 0, 1, 1],
        window: [0.0, 0.0, 1.0, 1.0],
        place: [0, 0, 1, 1],
        size: [1; 2],
        filter: Filter::Bilinear,
        flip: [false; 2],
        fill: [0; 3],
    };

    struct Encoded;

    impl EncodedPicture for Encoded {
        fn drawing(&self) -> &Drawing {
            &DRAWING
        }

        fn draw(
            &self,
            _: &[u8],
            _: &mut [u8],
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            Ok(())
        }
    }

    fn noted(all: Vec<(usize, usize, Content)>) -> (Pictures, Meter) {
        let pictures = Pictures::default();
        for (field, row, content) in all {
            pictures.note(field, row, content);
        }
        (pictures, Meter::default())
    }

    #[test]
    fn rows_of_pictures_are_left_out() {
        let of = |pictures: &[usize], least_gap| -> Vec<(usize, usize)> {
            let ranges = rows_of_pixels(8, pictures.iter().copied(), least_gap);
            ranges.iter().map(|rows| (rows.start, rows.end)).collect()
        };
        for least_gap in [1, 3] {
            assert_eq!(of(&[], least_gap), [(0, 8)]);
            assert_eq!(of(&[0, 1, 2, 3, 4, 5, 6, 7], least_gap), []);
            assert_eq!(of(&[0, 6, 7], least_gap), [(1, 6)]);
            assert_eq!(of(&[2, 3, 4], least_gap), [(0, 2), (5, 8)]);
        }
        assert_eq!(of(&[1, 3, 4], 1), [(0, 1), (2, 3), (5, 8)]);
        assert_eq!(of(&[1, 3, 4], 2), [(0, 3), (5, 8)]);
        assert_eq!(of(&[1, 3, 4], 3), [(0, 8)]);
        assert!(rows_of_pixels(0, [].into_iter(), 1).is_empty());
    }

    /// What the CPU decoded is counted with the pictures, whichever field they are of, and at once if there are none.
    #[test]
    fn reasons_wait_for_pictures() {
        let because = Content::PixelsBecause;
        let steps = || Steps::of(&Encoded).unwrap();
        let picture = || Content::Picture(steps(), Box::new(Encoded), EncodedFile::InRow(0));
        let all = || {
            vec![
                (0, 0, because("one")),
                (1, 1, picture()),
                (1, 1, because("another")),
                (0, 1, because("one")),
                (0, 1, Content::Pixels),
                (1, 0, because("one")),
                (1, 0, picture()),
            ]
        };
        for fields in [[0, 1], [1, 0]] {
            let (pictures, meter) = noted(all());
            for field in fields {
                let (taken, reasons) = pictures.take(field, Some(&meter));
                let rows: Vec<usize> = taken.iter().map(|picture| picture.row).collect();
                match field {
                    0 => assert!(rows.is_empty() && reasons.is_empty()),
                    _ => {
                        assert_eq!(rows, [0]);
                        assert_eq!(reasons, [("one", 1), ("another", 1)].into());
                    }
                }
            }
            assert!(meter.left_to_cpu.lock().is_empty());
        }
        let (pictures, meter) = noted(vec![(0, 0, because("one")), (1, 0, because("one"))]);
        for field in 0..2 {
            let (taken, reasons) = pictures.take(field, Some(&meter));
            assert!(taken.is_empty() && reasons.is_empty());
        }
        assert_eq!(*meter.left_to_cpu.lock(), [("one", 2)].into());
    }
}
