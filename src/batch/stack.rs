//! Stacking: each field of the samples becomes a tensor with one dimension more.

use std::fmt;
use std::panic::AssertUnwindSafe;

use super::Batch;
use super::collate::{
    Collate, Failure, Learned, Opening, Request, Table, Unmade, excess_bytes, sealed::Sealed,
};
use crate::device::{FillingSlab, Slab};
use crate::error::{CollateError, panic_message};
use crate::sync::{Arc, Mutex, OnceLock};
use crate::tensor::{Backend, Layout, Sample};

/// What is left of samples that were filled in, by their rows. What takes no memory (most often it is `()`) has no row
/// either: one is like the other.
#[doc(hidden)]
pub struct Rests<R> {
    numbered: Vec<(usize, R)>,
    alike: Vec<R>,
}

impl<R> fmt::Debug for Rests<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rests").finish_non_exhaustive()
    }
}

impl<R> Default for Rests<R> {
    fn default() -> Rests<R> {
        Rests {
            numbered: Vec::new(),
            alike: Vec::new(),
        }
    }
}

impl<R> Rests<R> {
    #[inline]
    fn push(&mut self, row: usize, rest: R) {
        match size_of::<R>() {
            0 => self.alike.push(rest),
            _ => self.numbered.push((row, rest)),
        }
    }

    fn is_empty(&self) -> bool {
        self.numbered.is_empty() && self.alike.is_empty()
    }

    fn append(&mut self, other: &mut Rests<R>) {
        self.numbered.append(&mut other.numbered);
        self.alike.append(&mut other.alike);
    }

    fn in_order(mut self) -> Vec<R> {
        if size_of::<R>() == 0 {
            return self.alike;
        }
        self.numbered.sort_unstable_by_key(|(row, _)| *row);
        self.numbered.into_iter().map(|(_, rest)| rest).collect()
    }
}

/// Stacks samples: the default. Each field of the samples becomes a tensor with one dimension more.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stack;

impl Sealed for Stack {}

impl<S: Sample<Batch: Batch>> Collate<S> for Stack {
    type Batch = S::Batch;
    type Table = StackTable<S>;
    const IN_PARTS: bool = S::ALIKE && S::DENSE;

    fn open(&self, opening: Opening<'_>) -> StackTable<S> {
        StackTable {
            rows: opening.rows,
            excess_bytes: Stack::excess_bytes::<S>(opening.rows),
            gathered_by: opening.gathered_by,
            learned: Arc::clone(opening.learned),
            planned: OnceLock::new(),
            slab: OnceLock::new(),
            parked: Mutex::default(),
            rest: Mutex::default(),
        }
    }

    fn make<E>(
        &self,
        rows: usize,
        mut next: impl FnMut(usize) -> Result<S, E>,
        slab: impl FnOnce(usize) -> Option<Slab>,
    ) -> Result<S::Batch, Unmade<E>> {
        if let Some(bytes) = Stack::excess_bytes::<S>(rows) {
            return Err(Unmade::NoMemory(bytes));
        }
        let mut layout = Layout::new(rows);
        let failed = |row: usize, error| {
            Unmade::Failed(Failure::Row {
                row,
                planned_from: (S::ALIKE && row > 0).then_some(0),
                error,
            })
        };
        // Those that the batch is planned from are loaded ahead: one, or all.
        let (first, all) = match S::ALIKE {
            true => (Some(next(0).map_err(Unmade::Sample)?), Vec::new()),
            false => (
                None,
                (0..rows)
                    .map(&mut next)
                    .collect::<Result<_, E>>()
                    .map_err(Unmade::Sample)?,
            ),
        };
        let planned = match &first {
            Some(first) => S::plan(std::iter::once(first), &mut layout),
            None => Unmade::guard(|| S::plan(all.iter(), &mut layout))?,
        };
        let plan = planned.map_err(|error| failed(0, error))?;
        check_rows(&layout, rows).map_err(|error| failed(0, error))?;
        let bytes = layout.size_bytes();
        let slab = slab(bytes).ok_or(Unmade::NoMemory(bytes))?;
        let slab = FillingSlab::new(slab, &layout);
        let mut rest = Vec::new();
        let reserved = rest.try_reserve_exact(rows);
        reserved.map_err(|_| Unmade::NoMemory(rows.saturating_mul(size_of::<S::Rest>())))?;
        let mut fill = |row, sample: S| {
            // SAFETY: the slab was made for the layout, and this thread alone fills it.
            let mut target = unsafe { slab.row(&layout, row) };
            match sample.fill(&plan, &mut target) {
                Ok(left) => rest.push(left),
                Err(error) => return Err(failed(row, error)),
            }
            target.complete().map_err(|error| failed(row, error))
        };
        for (row, sample) in all.into_iter().enumerate() {
            // Caught here, where the row is known. Unwind safety: the batch has failed, and its bytes are never read.
            let filled = std::panic::catch_unwind(AssertUnwindSafe(|| fill(row, sample)));
            filled.unwrap_or_else(|payload| {
                let message = panic_message(payload);
                Err(Unmade::Failed(Failure::Panicked { row, message }))
            })?;
        }
        if let Some(first) = first {
            fill(0, first)?;
            for row in 1..rows {
                fill(row, next(row).map_err(Unmade::Sample)?)?;
            }
        }
        // SAFETY: as above.
        let mut filled = unsafe { slab.finish(layout) };
        Unmade::guard(|| S::finish(plan, rest, &mut filled))
    }
}

impl Stack {
    /// What is kept of so many samples until they are a batch, if no memory is as large.
    fn excess_bytes<S: Sample>(rows: usize) -> Option<usize> {
        match S::ALIKE {
            true => excess_bytes::<S::Rest>(rows),
            false => excess_bytes::<S>(rows),
        }
    }
}

/// A layout of other rows would give rows that lie outside of the slab (*layouts are in bounds and aligned*).
pub(super) fn check_rows(layout: &Layout, rows: usize) -> Result<(), CollateError> {
    if layout.rows() == rows {
        return Ok(());
    }
    Err(CollateError::Other(
        "`Sample::plan` replaced the layout that it was lent, instead of adding fields to it"
            .into(),
    ))
}

#[doc(hidden)]
pub struct StackTable<S: Sample> {
    rows: usize,
    /// Its size, if it is too large for any memory.
    excess_bytes: Option<usize>,
    gathered_by: Option<Backend>,
    learned: Arc<Learned>,
    planned: OnceLock<Planned<S>>,
    slab: OnceLock<FillingSlab>,
    /// Samples that came before the slab.
    parked: Mutex<Vec<(usize, S)>>,
    rest: Mutex<Rests<S::Rest>>,
}

impl<S: Sample> fmt::Debug for StackTable<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = f.debug_struct("StackTable");
        table.field("rows", &self.rows).finish_non_exhaustive()
    }
}

struct Planned<S: Sample> {
    plan: S::Plan,
    layout: Layout,
    /// The row of the sample that the layout was planned from.
    from: usize,
}

impl<S: Sample> StackTable<S> {
    /// Plans the batch; says whether this plan holds, or somebody else's came first. No lock is held: `S::plan` may be
    /// the user's.
    fn plan<'a>(
        &self,
        from: usize,
        samples: impl Iterator<Item = &'a S> + Clone,
    ) -> Result<bool, CollateError> {
        let mut layout = Layout::new(self.rows).gathered_by(self.gathered_by);
        let plan = S::plan(samples, &mut layout)?;
        if layout.is_gatherable() {
            self.learned.gatherable();
        }
        self.learned.sample_takes(layout.sample_bytes());
        check_rows(&layout, self.rows)?;
        Ok(self.planned.set(Planned { plan, layout, from }).is_ok())
    }

    /// # Safety
    ///
    /// The slab was made for the planned layout, and no other thread fills this row.
    unsafe fn fill(
        slab: &FillingSlab,
        planned: &Planned<S>,
        row: usize,
        sample: S,
    ) -> Result<S::Rest, Failure> {
        // SAFETY: the caller's contract.
        let mut target = unsafe { slab.row(&planned.layout, row) };
        let filled = sample.fill(&planned.plan, &mut target);
        let filled = filled.and_then(|rest| target.complete().map(|()| rest));
        filled.map_err(|error| Failure::Row {
            row,
            planned_from: (planned.from != row).then_some(planned.from),
            error,
        })
    }

    /// As `fill`, for a sample that was parked: a panic is caught here, where the row is known.
    ///
    /// # Safety
    ///
    /// As `fill`.
    unsafe fn fill_parked(
        slab: &FillingSlab,
        planned: &Planned<S>,
        row: usize,
        sample: S,
    ) -> Result<S::Rest, Failure> {
        // SAFETY: the caller's contract. Unwind safety: the batch has failed, and its bytes are never read.
        let fill = AssertUnwindSafe(|| unsafe { StackTable::fill(slab, planned, row, sample) });
        std::panic::catch_unwind(fill).unwrap_or_else(|payload| {
            let message = panic_message(payload);
            Err(Failure::Panicked { row, message })
        })
    }
}

impl<S: Sample<Batch: Batch>> Table<S, S::Batch> for StackTable<S> {
    type Run = Rests<S::Rest>;

    fn load(&self, row: usize, sample: S, run: &mut Self::Run) -> Result<Request, Failure> {
        if let (Some(slab), Some(planned)) = (self.slab.get(), self.planned.get()) {
            // SAFETY: `grant` made the slab for this layout; the schedule gives each row to one worker, once.
            let rest = unsafe { StackTable::fill(slab, planned, row, sample) }?;
            run.push(row, rest);
            return Ok(Request::Nothing);
        }
        if let Some(bytes) = self.excess_bytes {
            return Err(Failure::NoMemory { bytes });
        }
        let mut request = Request::Nothing;
        if S::ALIKE && self.planned.get().is_none() {
            let alone = |error| Failure::Row {
                row,
                planned_from: None,
                error,
            };
            if self.plan(row, std::iter::once(&sample)).map_err(alone)? {
                request = self.request();
            }
        }
        self.parked.lock().push((row, sample));
        Ok(request)
    }

    fn end_run(&self, mut run: Self::Run) {
        if !run.is_empty() {
            self.rest.lock().append(&mut run);
        }
    }

    fn loaded(&self) -> Result<Request, Failure> {
        if self.planned.get().is_some() {
            return Ok(Request::Nothing);
        }
        let mut parked = std::mem::take(&mut *self.parked.lock());
        parked.sort_unstable_by_key(|(row, _)| *row);
        let planned = self.plan(0, parked.iter().map(|(_, sample)| sample));
        *self.parked.lock() = parked;
        planned.map_err(|error| Failure::Row {
            row: 0,
            planned_from: None,
            error,
        })?;
        Ok(self.request())
    }

    fn grant(&self, slab: Slab) {
        if let Some(planned) = self.planned.get() {
            let granted = self.slab.set(FillingSlab::new(slab, &planned.layout));
            debug_assert!(granted.is_ok(), "a batch is granted one slab");
        }
    }

    fn finish(&mut self) -> Result<S::Batch, Failure> {
        let (Some(planned), Some(slab)) = (self.planned.take(), self.slab.take()) else {
            unreachable!("a batch is finished when its slab is there");
        };
        let mut rest = std::mem::take(self.rest.get_mut());
        for (row, sample) in self.parked.get_mut().drain(..) {
            // SAFETY: as above; `&mut self`: no other thread fills anything.
            let left = unsafe { StackTable::fill_parked(&slab, &planned, row, sample) }?;
            rest.push(row, left);
        }
        let rest = rest.in_order();
        // SAFETY: as above.
        let mut filled = unsafe { slab.finish(planned.layout) };
        Ok(S::finish(planned.plan, rest, &mut filled))
    }
}

impl<S: Sample> StackTable<S> {
    fn request(&self) -> Request {
        match self.planned.get() {
            Some(planned) => Request::Slab {
                bytes: planned.layout.size_bytes(),
            },
            None => Request::Nothing,
        }
    }
}
