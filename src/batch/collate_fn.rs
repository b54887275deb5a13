//! Collating with a user's function.

use std::fmt;

use super::collate::{
    Collate, Failure, Needs, NotLoaded, Opening, Table, Took, excess_bytes, sealed::Sealed,
};
use super::{Arena, Batch};
use crate::device::Piece;
use crate::error::BoxError;
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering};

/// Collates with a function: see [`Builder::collate_fn`](crate::loader::Builder::collate_fn).
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
    /// The arena size that the next batch will probably need.
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

impl<F, B> Sealed for CollateFn<F, B> {}

impl<S, B, F> Collate<S> for CollateFn<F, B>
where
    S: Send + 'static,
    B: Batch,
    F: Fn(Vec<S>, &mut Arena) -> Result<B, BoxError> + Send + Sync + 'static,
{
    type Batch = B;
    type Table = FnTable<S, F>;
    const IN_PLACE: bool = false;

    fn open(&self, opening: Opening) -> FnTable<S, F> {
        FnTable {
            excess_bytes: excess_bytes::<S>(opening.rows),
            shared: Arc::clone(&self.shared),
            samples: Mutex::default(),
            piece: Mutex::new(None),
        }
    }
}

impl<F> Shared<F> {
    fn collate<S, B>(&self, samples: Vec<S>, piece: Option<Piece>) -> Result<B, Failure>
    where
        F: Fn(Vec<S>, &mut Arena) -> Result<B, BoxError>,
    {
        let mut arena = Arena::new(piece);
        let batch = (self.f)(samples, &mut arena).map_err(Failure::Function)?;
        // The hint follows larger batches at once and smaller ones slowly, so one outlier is forgotten after some
        // batches. (Relaxed: it is only a hint; what does not fit is copied.)
        let hint = self.hint_bytes.load(Ordering::Relaxed);
        let hint = arena.wanted_bytes().max(hint - hint / 8);
        self.hint_bytes.store(hint, Ordering::Relaxed);
        Ok(batch)
    }
}

#[doc(hidden)]
pub struct FnTable<S, F> {
    /// The size of the samples, if it exceeds the memory that the process may use.
    excess_bytes: Option<usize>,
    shared: Arc<Shared<F>>,
    samples: Mutex<Vec<(usize, S)>>,
    piece: Mutex<Option<Piece>>,
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

    fn load<E>(
        &self,
        mut next: impl FnMut() -> Option<Result<(usize, S), E>>,
        run: &mut Self::Run,
        took: &mut Took,
        _ask: &dyn Fn(Needs) -> bool,
    ) -> Result<(), NotLoaded<E>> {
        while let Some(sample) = next() {
            run.push(sample.map_err(NotLoaded::Sample)?);
            if let Some(bytes) = self.excess_bytes {
                return Err(NotLoaded::Failed(Failure::NoMemory { bytes }));
            }
            took.filled += 1; // as far as it can be: the function takes all samples at once
        }
        Ok(())
    }

    fn end_run(&self, mut run: Self::Run) {
        self.samples.lock().append(&mut run);
    }

    fn takes_any(&self) -> bool {
        true
    }

    fn unpark(&self, _most: usize) -> Vec<(usize, S)> {
        Vec::new()
    }

    fn plan(&self) -> Result<Needs, Failure> {
        // Relaxed: it is only a hint; what does not fit is copied.
        let bytes = self.shared.hint_bytes.load(Ordering::Relaxed);
        Ok(Needs {
            bytes,
            ..Needs::default()
        })
    }

    fn grant(&self, piece: Piece) {
        *self.piece.lock() = Some(piece);
    }

    fn finish(&mut self) -> Result<B, Failure> {
        let mut samples = std::mem::take(self.samples.get_mut());
        samples.sort_unstable_by_key(|(row, _)| *row);
        let samples = samples.into_iter().map(|(_, sample)| sample).collect();
        self.shared.collate(samples, self.piece.get_mut().take())
    }
}
