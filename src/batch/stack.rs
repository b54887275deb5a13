//! Stacking: each field of the samples becomes a tensor with one more dimension.

use std::fmt;

use super::Batch;
use super::collate::{
    Collate, Failure, Needs, NotLoaded, Opening, Table, Took, excess_bytes, sealed::Sealed,
};
use crate::device::{FillingSlab, Piece};
use crate::error::CollateError;
use crate::sync::{Mutex, OnceLock};
use crate::tensor::{Column, Layout, Offload, Sample};

/// What remains of samples after filling, by row. Values without a size (usually `()`) are interchangeable, so their
/// rows are not kept.
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

/// Stacks samples: the default. Each field of the samples becomes a tensor with one more dimension.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stack;

impl Sealed for Stack {}

impl<S: Sample<Batch: Batch>> Collate<S> for Stack {
    type Batch = S::Batch;
    type Table = StackTable<S>;
    const IN_PLACE: bool = true;
    const IN_PARTS: bool = S::ALIKE && S::DENSE;
    const IS_DENSE: bool = S::DENSE;

    fn open(&self, opening: Opening) -> StackTable<S> {
        StackTable {
            rows: opening.rows,
            excess_bytes: Stack::excess_bytes::<S>(opening.rows),
            offload: opening.offload,
            planned: OnceLock::new(),
            slab: OnceLock::new(),
            parked: Mutex::default(),
            rest: Mutex::default(),
        }
    }
}

impl Stack {
    /// The size of what is kept of this many samples until they are a batch, if it exceeds the memory that the process
    /// may use.
    fn excess_bytes<S: Sample>(rows: usize) -> Option<usize> {
        match S::ALIKE {
            true => excess_bytes::<S::Rest>(rows),
            false => excess_bytes::<S>(rows),
        }
    }
}

#[doc(hidden)]
pub struct StackTable<S: Sample> {
    rows: usize,
    /// The size of what is kept, if it exceeds the memory that the process may use.
    excess_bytes: Option<usize>,
    offload: Offload,
    planned: OnceLock<Planned<S>>,
    slab: OnceLock<FillingSlab>,
    /// Samples that came before the slab, with their rows.
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
    /// Plans the batch. Returns whether this plan is used; another thread's may have come first. No lock is held,
    /// because `S::plan` may be the user's code.
    fn plan_from<'a>(
        &self,
        from: usize,
        samples: impl Iterator<Item = &'a S> + Clone,
    ) -> Result<bool, CollateError> {
        let layout = Layout::new(self.rows).offload(self.offload);
        let (plan, layout) = layout.lend(|layout| S::plan(samples, layout))?;
        Ok(self.planned.set(Planned { plan, layout, from }).is_ok())
    }

    /// The slab, once granted, and the plan to fill it by.
    fn granted(&self) -> Option<(&FillingSlab, &Planned<S>)> {
        Some((self.slab.get()?, self.planned.get()?))
    }

    /// # Safety
    ///
    /// The slab must have been made for the planned layout, and no other thread may fill this row.
    #[inline(always)] // called for each sample, which may be a single number
    unsafe fn fill(
        slab: &FillingSlab,
        planned: &Planned<S>,
        row: usize,
        sample: S,
    ) -> Result<S::Rest, CollateError> {
        // SAFETY: the caller's contract.
        let mut target = unsafe { slab.row(&planned.layout, row) };
        let rest = sample.fill(&planned.plan, &mut target)?;
        target.complete().map(|()| rest)
    }
}

impl<S: Sample> Planned<S> {
    #[cold]
    fn failed(&self, row: usize, error: CollateError) -> Failure {
        Failure::Row {
            row,
            planned_from: (self.from != row).then_some(self.from),
            error,
        }
    }
}

impl<S: Sample<Batch: Batch>> Table<S, S::Batch> for StackTable<S> {
    type Run = Rests<S::Rest>;

    fn load<E>(
        &self,
        mut next: impl FnMut() -> Option<Result<(usize, S), E>>,
        run: &mut Self::Run,
        took: &mut Took,
        ask: &dyn Fn(Needs) -> bool,
    ) -> Result<(), NotLoaded<E>> {
        let mut granted = self.granted();
        while let Some(sample) = next() {
            let (row, sample) = sample.map_err(NotLoaded::Sample)?;
            if granted.is_none() {
                if self.rows == 0 {
                    self.keep_pattern(row, sample, took);
                    continue;
                }
                let asked = self.ask_for_slab(row, &sample, ask);
                asked.map_err(NotLoaded::Failed)?;
                granted = self.granted();
            }
            let Some((slab, planned)) = granted else {
                self.parked.lock().push((row, sample));
                took.parked += 1;
                continue;
            };
            // SAFETY: `grant` made the slab for this layout; the schedule gives each row to one worker, once.
            let rest = unsafe { StackTable::fill(slab, planned, row, sample) };
            match rest {
                Ok(rest) => run.push(row, rest),
                Err(error) => return Err(NotLoaded::Failed(planned.failed(row, error))),
            }
            took.filled += 1;
        }
        Ok(())
    }

    fn takes_rows(&self) -> bool {
        self.granted().is_some() && S::rest_of_rows().is_some()
    }

    fn copy_rows(
        &self,
        first: usize,
        columns: &[Column],
        indices: &[u64],
        run: &mut Self::Run,
    ) -> bool {
        let (Some((slab, planned)), Some(_)) = (self.granted(), S::rest_of_rows()) else {
            return false;
        };
        // SAFETY: `grant` made the slab for this layout; the schedule gives each row to one worker, once.
        let is_copied = unsafe { slab.copy_rows(&planned.layout, first, columns, indices) };
        if is_copied {
            let rows = first..first + indices.len();
            rows.zip(std::iter::repeat_with(S::rest_of_rows))
                .for_each(|(row, rest)| rest.into_iter().for_each(|rest| run.push(row, rest)));
        }
        is_copied
    }

    fn end_run(&self, mut run: Self::Run) {
        if !run.is_empty() {
            self.rest.lock().append(&mut run);
        }
    }

    fn takes_any(&self) -> bool {
        S::ALIKE || self.planned.get().is_none()
    }

    fn unpark(&self, most: usize) -> Vec<(usize, S)> {
        let mut parked = self.parked.lock();
        let kept = parked.len().saturating_sub(most);
        parked.split_off(kept)
    }

    fn plan(&self) -> Result<Needs, Failure> {
        // One thread plans and no thread loads, so the samples can be taken out: no lock is held while `S::plan` sees
        // them.
        let mut parked = std::mem::take(&mut *self.parked.lock());
        parked.sort_unstable_by_key(|(row, _)| *row);
        let planned = self.plan_from(0, parked.iter().map(|(_, sample)| sample));
        if self.rows == 0 {
            drop(parked); // it told what rows would be like
        } else {
            *self.parked.lock() = parked;
        }
        planned.map_err(|error| Failure::Row {
            row: 0,
            planned_from: None,
            error,
        })?;
        Ok(self.needs())
    }

    fn grant(&self, piece: Piece) {
        if let Some(planned) = self.planned.get() {
            let granted = self.slab.set(FillingSlab::new(piece, &planned.layout));
            debug_assert!(granted.is_ok(), "a batch is granted one slab");
        }
    }

    fn finish(&mut self) -> Result<S::Batch, Failure> {
        let (Some(planned), Some(slab)) = (self.planned.take(), self.slab.take()) else {
            unreachable!("a batch is finished when its slab is there");
        };
        let rest = std::mem::take(self.rest.get_mut()).in_order();
        // SAFETY: `grant` made the slab for this layout.
        let mut filled = unsafe { slab.finish(planned.layout) };
        Ok(S::finish(planned.plan, rest, &mut filled))
    }
}

impl<S: Sample> StackTable<S> {
    /// Of an empty batch: keeps a sample that tells what rows would be like, until the batch is laid out.
    #[cold]
    fn keep_pattern(&self, row: usize, sample: S, took: &mut Took) {
        self.parked.lock().push((row, sample));
        took.filled += 1; // as far as it is
    }

    /// Called before the first sample is parked or filled: plans the batch from this sample, if one is enough, and asks
    /// for the slab.
    #[inline(never)]
    fn ask_for_slab(
        &self,
        row: usize,
        sample: &S,
        ask: &dyn Fn(Needs) -> bool,
    ) -> Result<(), Failure> {
        if let Some(bytes) = self.excess_bytes {
            return Err(Failure::NoMemory { bytes });
        }
        if !S::ALIKE || self.planned.get().is_some() {
            return Ok(());
        }
        let planned = self.plan_from(row, std::iter::once(sample));
        let is_first = planned.map_err(|error| Failure::Row {
            row,
            planned_from: None,
            error,
        })?;
        let needs = self.needs();
        match !is_first || ask(needs) {
            true => Ok(()),
            false => Err(Failure::NoMemory { bytes: needs.bytes }),
        }
    }

    fn needs(&self) -> Needs {
        let layout = self.planned.get().map(|planned| &planned.layout);
        layout.map_or(Needs::default(), |layout| Needs {
            bytes: layout.size_bytes(),
            sample_bytes: layout.sample_bytes(),
            is_gatherable: layout.is_gatherable(),
            has_pictures: layout.has_pictures(),
        })
    }
}
