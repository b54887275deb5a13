//! Collating: how samples become a batch, by several workers at once.
//!
//! An open batch is a [`Table`]. Workers [`load`](Table::load) samples into it; at some point it says how large a slab
//! it needs ([`Request`]), which is granted now or later; samples that come before are *parked*. Whoever brought the
//! last sample, once the slab is there, [`finish`](Table::finish)es it.

use std::fmt;
use std::panic::AssertUnwindSafe;

use super::{Arena, Batch};
use crate::device::{FillingSlab, Slab};
use crate::error::{BoxError, CollateError, panic_message};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, OnceLock, Ordering};
use crate::tensor::{Backend, Layout, Sample};

/// Makes batches out of samples: [`Stack`], or a function ([`CollateFn`]). It cannot be implemented elsewhere.
#[diagnostic::on_unimplemented(
    message = "samples of type `{S}` cannot be collated into a batch",
    label = "these samples cannot be stacked",
    note = "numbers, bool, arrays, Vec of numbers, Tensor, String, tuples of these, and structs with #[derive(pinfeed::Sample)] can",
    note = "wrap a value in pinfeed::Host(..) to keep it on the host, or give the builder a collate_fn"
)]
pub trait Collate<S>: Send + Sync + 'static + sealed::Sealed {
    /// What comes out.
    type Batch: Batch;
    /// A batch that is being collated.
    #[doc(hidden)]
    type Table: Table<S, Self::Batch>;

    /// Opens a batch.
    #[doc(hidden)]
    fn open(&self, opening: Opening<'_>) -> Self::Table;
}

/// What a batch is to be.
#[derive(Debug)]
pub struct Opening<'a> {
    pub(crate) rows: usize,
    /// The devices that gather the rows that they can reach.
    pub(crate) gathered_by: Option<Backend>,
    /// Set when there are rows that some device could gather. (Relaxed: it is a hint for epochs to come.)
    pub(crate) gatherable: &'a Arc<AtomicBool>,
}

mod sealed {
    pub trait Sealed {}
}

/// What a table needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Nothing, or nothing that was not asked for before.
    Nothing,
    /// A slab of so many bytes.
    Slab { bytes: usize },
}

/// Why a batch could not be collated.
#[derive(Debug)]
pub enum Failure {
    /// A sample, by its row, and the row that the layout was planned from.
    Row {
        row: usize,
        planned_from: Option<usize>,
        error: CollateError,
    },
    /// A sample's `fill` panicked with this message.
    Panicked { row: usize, message: String },
    /// The collate function.
    Function(BoxError),
}

/// An open batch.
#[doc(hidden)]
pub trait Table<S, B>: Send + Sync {
    /// What one worker gathers over a run of samples.
    type Run: Default;

    /// Takes one sample.
    fn load(&self, row: usize, sample: S, run: &mut Self::Run) -> Result<Request, Failure>;

    /// Ends a worker's run of samples.
    fn end_run(&self, run: Self::Run);

    /// What the table needs once all samples are loaded, if it did not say before.
    fn loaded(&self) -> Result<Request, Failure>;

    /// Gives the table the slab that it asked for.
    fn grant(&self, slab: Slab);

    /// Fills what was parked, and makes the batch. All samples were loaded and the slab was granted.
    fn finish(&mut self) -> Result<B, Failure>;
}

/// Stacks samples: the default. Each field of the samples becomes a tensor with one dimension more.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stack;

impl sealed::Sealed for Stack {}

impl<S: Sample<Batch: Batch>> Collate<S> for Stack {
    type Batch = S::Batch;
    type Table = StackTable<S>;

    fn open(&self, opening: Opening<'_>) -> StackTable<S> {
        StackTable {
            rows: opening.rows,
            gathered_by: opening.gathered_by,
            gatherable: Arc::clone(opening.gatherable),
            planned: OnceLock::new(),
            slab: OnceLock::new(),
            parked: Mutex::default(),
            rest: Mutex::default(),
        }
    }
}

#[doc(hidden)]
pub struct StackTable<S: Sample> {
    rows: usize,
    gathered_by: Option<Backend>,
    gatherable: Arc<AtomicBool>,
    planned: OnceLock<Planned<S>>,
    slab: OnceLock<FillingSlab>,
    /// Samples that came before the slab.
    parked: Mutex<Vec<(usize, S)>>,
    rest: Mutex<Vec<(usize, S::Rest)>>,
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
            self.gatherable.store(true, Ordering::Relaxed);
        }
        // A layout of other rows would give rows that lie outside of the slab (*layouts are in bounds and aligned*).
        if layout.rows() != self.rows {
            return Err(CollateError::Other(
                "`Sample::plan` replaced the layout that it was lent, instead of adding fields to it".into(),
            ));
        }
        Ok(self.planned.set(Planned { plan, layout, from }).is_ok())
    }

    /// # Safety
    ///
    /// No other thread fills this row.
    unsafe fn fill(
        slab: &FillingSlab,
        planned: &Planned<S>,
        row: usize,
        sample: S,
    ) -> Result<S::Rest, Failure> {
        // SAFETY: the caller's contract.
        let mut target = unsafe { slab.row(row) };
        let failure = |error| Failure::Row {
            row,
            planned_from: (planned.from != row).then_some(planned.from),
            error,
        };
        // Caught here, where the row is known: parked samples are filled long after they were loaded. Unwind safety:
        // the batch has failed, and its bytes are never read.
        let filled = AssertUnwindSafe(|| sample.fill(&planned.plan, &mut target));
        let rest = match std::panic::catch_unwind(filled) {
            Ok(rest) => rest.map_err(failure)?,
            Err(payload) => {
                let message = panic_message(payload);
                return Err(Failure::Panicked { row, message });
            }
        };
        target.complete().map_err(failure)?;
        Ok(rest)
    }
}

impl<S: Sample<Batch: Batch>> Table<S, S::Batch> for StackTable<S> {
    type Run = Vec<(usize, S::Rest)>;

    fn load(&self, row: usize, sample: S, run: &mut Self::Run) -> Result<Request, Failure> {
        if let (Some(slab), Some(planned)) = (self.slab.get(), self.planned.get()) {
            // SAFETY: the schedule gives each row to one worker, once.
            let rest = unsafe { StackTable::fill(slab, planned, row, sample) }?;
            run.push((row, rest));
            return Ok(Request::Nothing);
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
            let granted = self
                .slab
                .set(FillingSlab::new(slab, planned.layout.clone()));
            debug_assert!(granted.is_ok(), "a batch is granted one slab");
        }
    }

    fn finish(&mut self) -> Result<S::Batch, Failure> {
        let (Some(planned), Some(slab)) = (self.planned.take(), self.slab.take()) else {
            unreachable!("a batch is finished when its slab is there");
        };
        let rest = self.rest.get_mut();
        for (row, sample) in self.parked.get_mut().drain(..) {
            // SAFETY: `&mut self`: no other thread fills anything.
            rest.push((row, unsafe {
                StackTable::fill(&slab, &planned, row, sample)
            }?));
        }
        rest.sort_unstable_by_key(|(row, _)| *row);
        let rest = rest.drain(..).map(|(_, rest)| rest).collect();
        Ok(S::finish(planned.plan, rest, &mut slab.finish()))
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

/// Collates by a function: what [`Builder::collate_fn`](crate::Builder::collate_fn) makes.
pub struct CollateFn<F, B> {
    shared: Arc<Shared<F>>,
    batch: std::marker::PhantomData<fn() -> B>,
}

impl<F, B> fmt::Debug for CollateFn<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollateFn").finish_non_exhaustive()
    }
}

struct Shared<F> {
    f: F,
    /// What a batch is likely to need of its arena.
    hint_bytes: AtomicUsize,
}

impl<F, B> CollateFn<F, B> {
    pub(crate) fn new(f: F) -> CollateFn<F, B> {
        CollateFn {
            shared: Arc::new(Shared {
                f,
                hint_bytes: AtomicUsize::new(0),
            }),
            batch: std::marker::PhantomData,
        }
    }
}

impl<F, B> sealed::Sealed for CollateFn<F, B> {}

impl<S, B, F> Collate<S> for CollateFn<F, B>
where
    S: Send + 'static,
    B: Batch,
    F: Fn(Vec<S>, &mut Arena) -> Result<B, BoxError> + Send + Sync + 'static,
{
    type Batch = B;
    type Table = FnTable<S, F>;

    fn open(&self, _: Opening<'_>) -> FnTable<S, F> {
        FnTable {
            shared: Arc::clone(&self.shared),
            samples: Mutex::default(),
            slab: Mutex::new(None),
        }
    }
}

#[doc(hidden)]
pub struct FnTable<S, F> {
    shared: Arc<Shared<F>>,
    samples: Mutex<Vec<(usize, S)>>,
    slab: Mutex<Option<Slab>>,
}

impl<S, F> fmt::Debug for FnTable<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnTable").finish_non_exhaustive()
    }
}

impl<S, B, F> Table<S, B> for FnTable<S, F>
where
    S: Send + 'static,
    B: Batch,
    F: Fn(Vec<S>, &mut Arena) -> Result<B, BoxError> + Send + Sync + 'static,
{
    type Run = Vec<(usize, S)>;

    fn load(&self, row: usize, sample: S, run: &mut Self::Run) -> Result<Request, Failure> {
        run.push((row, sample));
        Ok(Request::Nothing)
    }

    fn end_run(&self, mut run: Self::Run) {
        self.samples.lock().append(&mut run);
    }

    fn loaded(&self) -> Result<Request, Failure> {
        // Relaxed: it is a hint; what does not fit is copied.
        Ok(Request::Slab {
            bytes: self.shared.hint_bytes.load(Ordering::Relaxed),
        })
    }

    fn grant(&self, slab: Slab) {
        *self.slab.lock() = Some(slab);
    }

    fn finish(&mut self) -> Result<B, Failure> {
        let mut samples = std::mem::take(self.samples.get_mut());
        samples.sort_unstable_by_key(|(row, _)| *row);
        let samples = samples.into_iter().map(|(_, sample)| sample).collect();
        let mut arena = Arena::new(self.slab.get_mut().take());
        let batch = (self.shared.f)(samples, &mut arena).map_err(Failure::Function)?;
        // The hint follows larger batches at once, and smaller ones slowly: one outlier is forgotten after some batches.
        let hint = self.shared.hint_bytes.load(Ordering::Relaxed);
        let hint = arena.wanted_bytes().max(hint - hint / 8);
        self.shared.hint_bytes.store(hint, Ordering::Relaxed);
        Ok(batch)
    }
}
