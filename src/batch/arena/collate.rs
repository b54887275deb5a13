//! Stacking inside a `collate_fn`: as the loader does without one, but in the arena's memory.

use std::ptr::NonNull;

use super::Arena;
use crate::error::{CollateError, Error, Result, StackMisfit};
use crate::sync::Arc;
use crate::system::usable_memory_bytes;
use crate::tensor::{ALIGNMENT, Filled, Layout, Row, Sample, Storage, Tensor};

impl Arena {
    /// Stacks samples as a loader without a `collate_fn` does: each field becomes a tensor with one more dimension, in
    /// the batch's slab. So a `collate_fn` can leave samples out, change them, or make some fields itself, and stack
    /// the rest.
    ///
    /// Without any samples, the resulting tensors have no rows, and their other dimensions are unknown (usually the
    /// shape is `[0]`). If all samples may be left out, check first.
    ///
    /// # Errors
    ///
    /// [`Error::Stack`] if a sample does not fit or failed to load; it gives the sample's position in `samples`.
    /// [`Error::HostMemory`] if the samples together exceed the memory that the process may use.
    ///
    /// # Examples
    ///
    /// Words without tokens are left out; tokens are padded; the rest is stacked:
    ///
    /// ```
    /// use pinfeed::collate::Arena;
    /// use pinfeed::{Batch, BoxError, DataLoader, Tensor};
    ///
    /// type Word = (Vec<i64>, (i64, String)); // tokens; label and text
    ///
    /// fn pad(mut words: Vec<Word>, arena: &mut Arena) -> Result<(Tensor<i64>, (Tensor<i64>, Vec<String>)), BoxError> {
    ///     words.retain(|(tokens, _)| !tokens.is_empty());
    ///     let longest = words.iter().map(|(tokens, _)| tokens.len()).max().ok_or("nothing but empty words")?;
    ///     let (tokens, rest): (Vec<_>, Vec<_>) = words.into_iter().unzip();
    ///     let pad = |mut tokens: Vec<i64>| {
    ///         tokens.resize(longest, -1);
    ///         tokens
    ///     };
    ///     let tokens = arena.collate(tokens.into_iter().map(pad).collect())?;
    ///     Ok((tokens, arena.collate(rest)?))
    /// }
    ///
    /// let words = vec![
    ///     (vec![1, 2, 3], (0, "one".to_owned())),
    ///     (vec![], (1, "none".to_owned())),
    ///     (vec![4], (0, "two".to_owned())),
    /// ];
    /// let loader = DataLoader::builder(words).batch_size(3).collate_fn(pad).build()?;
    /// let (tokens, (labels, texts)) = loader.epoch(0).next().unwrap()?;
    /// assert_eq!(tokens, Tensor::from_vec(vec![1, 2, 3, 4, -1, -1], &[2, 3])?);
    /// assert_eq!((labels.as_slice(), texts[1].as_str()), (&[0, 0][..], "two"));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn collate<S: Sample>(&mut self, samples: Vec<S>) -> Result<S::Batch> {
        let count = samples.len();
        let misfit = |place: usize, source: CollateError| {
            Error::Stack(Box::new(StackMisfit {
                place,
                count,
                planned_from: (S::ALIKE && place > 0).then_some(0),
                source,
            }))
        };
        let planned_from = if S::ALIKE { 1 } else { count };
        let samples_planned = samples.iter().take(planned_from);
        let planned = Layout::new(count).lend(|layout| S::plan(samples_planned, layout));
        let (plan, layout) = planned.map_err(|error| misfit(0, error))?;
        let (base, memory) = self.room(layout.size_bytes())?;
        let mut rest = Vec::with_capacity(count);
        for (place, sample) in samples.into_iter().enumerate() {
            // SAFETY: `room` returned as many initialized and aligned bytes as the layout has, which `memory` keeps and
            // nothing else reaches (*one owner per slab*); the layout was made here, without a device that gathers its rows, so none is
            // scattered (*a layout is its batch's own*).
            let mut row = unsafe { Row::new(&layout, base, place, None, false) };
            let filled = sample.fill(&plan, &mut row);
            let filled = filled.and_then(|left| row.complete().map(|()| left));
            rest.push(filled.map_err(|error| misfit(place, error))?);
        }
        // SAFETY: as above; each row was written, and none is still borrowed.
        let mut filled = unsafe { Filled::new(layout, base, memory, None) };
        Ok(S::finish(plan, rest, &mut filled))
    }

    /// Returns this many initialized bytes that nothing else reaches, aligned to [`ALIGNMENT`], and their owner: in the
    /// slab, or in pageable memory if they do not fit.
    fn room(&mut self, bytes: usize) -> Result<(NonNull<u8>, Arc<dyn Storage>)> {
        if bytes > usable_memory_bytes() {
            return Err(Error::HostMemory { bytes });
        }
        self.wanted_bytes = self.wanted_bytes.next_multiple_of(ALIGNMENT) + bytes;
        let start = self.used_bytes.next_multiple_of(ALIGNMENT);
        if let Some(piece) = &self.piece
            && start + bytes <= piece.capacity()
        {
            self.used_bytes = start + bytes;
            // SAFETY: the range lies inside the slab (*layouts are in bounds and aligned*). It was not handed out
            // before: `used_bytes` only grows (*one owner per slab*).
            let base = unsafe { piece.base().add(start) };
            return Ok((base, Arc::clone(piece.slab()) as Arc<dyn Storage>));
        }
        let memory = Tensor::<u8>::zeros(&[bytes + ALIGNMENT]);
        let start = memory.identity();
        let address = start.addr().get();
        let offset = address.next_multiple_of(ALIGNMENT) - address;
        // SAFETY: the tensor has `ALIGNMENT` spare bytes. The tensor is dropped, but the caller keeps its storage.
        let base = unsafe { start.add(offset) };
        Ok((base, Arc::clone(memory.storage())))
    }
}
