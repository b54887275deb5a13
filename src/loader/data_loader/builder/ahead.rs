//! Options that say how batches that are loaded ahead come: in which order, and in how much memory.

use super::Builder;

impl<D, C> Builder<D, C> {
    /// With `false`, gives each batch as soon as it is ready, so that a slow one does not hold up those that are done; on by default.
    ///
    /// Only the order of delivery changes. A batch holds the samples, random numbers and rows that it has in order, whenever it comes;
    /// [`BatchInfo`](crate::loader::BatchInfo) tells which one it is. A batch that fails comes when it fails. Epochs stay in
    /// order: all batches of one come before the first of the next. Without workers nothing changes.
    ///
    /// A batch that is slow takes one of [`prefetch`](Builder::prefetch) places until it comes, and the others go on in the places that are
    /// left: set `prefetch` above the number of batches that may be slow at once. They go on up to 64 batches beyond the slow one, and wait
    /// for it then. [`prefetch_to_device`](crate::loader::Epoch::prefetch_to_device) sends batches in the order in which they are made, and
    /// never in parts.
    ///
    /// # States
    ///
    /// A [`LoaderState`](crate::loader::LoaderState) also says which batches were given out before their turn, and resuming gives exactly
    /// the others, with or without this option. With several ranks, each has batches ready at other times than the others, so within an
    /// epoch each rank needs its own state, and resumes with the same batch size on as many ranks and devices
    /// ([what it says in any order](crate::loader::LoaderState#in-any-order)). At an epoch's end, states are those of a run in order.
    /// (Iterables have no such option: their state is where the source stands, which cannot have gaps.)
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) refuses it where several ranks are to see the same batches
    /// ([`World::replicated`](crate::loader::World::replicated)).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::{Arc, Barrier};
    ///
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let others_came = Arc::new(Barrier::new(2));
    /// let slow = Arc::clone(&others_came);
    /// let samples = from_fn(8, move |index, _| {
    ///     if index == 0 {
    ///         slow.wait(); // takes as long as all other batches
    ///     }
    ///     Ok(index as i64)
    /// });
    /// let loader = DataLoader::builder(samples).batch_size(2).num_workers(2).in_order(false).build()?;
    /// let mut came = Vec::new();
    /// for batch in loader.epoch(0).with_info() {
    ///     let (numbers, info) = batch?;
    ///     assert_eq!(numbers.as_slice()[0], 2 * info.batch() as i64); // what it holds does not change
    ///     came.push(info.batch());
    ///     if came.len() == 3 {
    ///         others_came.wait();
    ///     }
    /// }
    /// assert_eq!(came[3], 0);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn in_order(mut self, in_order: bool) -> Self {
        self.in_order = in_order;
        self
    }

    /// Limits the host memory of batches that are loaded ahead, in bytes; no limit by default. Needs workers.
    ///
    /// [`prefetch`](Builder::prefetch) counts batches. Where these differ much in size, a number that keeps the device fed with small ones
    /// may take more memory than there is with large ones: set `prefetch` for the small, and this for the large.
    ///
    /// What counts is the memory of each batch, page-locked or not, from when its size is known until the program has it, or until its copy
    /// to the device is done. A batch waits for its memory until there is room; a single one that is larger than the limit is loaded alone.
    /// So never more is in flight than this and one batch, the one that the program comes to next. (Epochs that are iterated at the same
    /// time may have one such batch each.) No more samples are begun than there is room for, if batches are as large as the data set says
    /// ([`Dataset::sample_bytes`](crate::Dataset::sample_bytes)), or as the largest so far.
    ///
    /// Not counted are: what samples hold themselves before they are written to their batch; what a `collate_fn` allocates; batches that
    /// the program holds; and idle memory that is kept for the next batches: that of two in pageable memory, and in page-locked
    /// memory of two more than fit the limit. [`Stats::most_bytes_in_flight`](crate::loader::Stats::most_bytes_in_flight) says how
    /// much was in flight.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, Ragged, from_fn};
    ///
    /// // Documents of 100 bytes, and now and then one of 100,000.
    /// let texts = from_fn(400, |index, _| {
    ///     let len = if index % 40 == 0 { 100_000 } else { 100 };
    ///     Ok(Ragged::from(vec![index as u8; len]))
    /// });
    /// let loader = DataLoader::builder(texts)
    ///     .batch_size(4)
    ///     .num_workers(2)
    ///     .prefetch(50)
    ///     .max_bytes_in_flight(1 << 20)
    ///     .build()?;
    /// for batch in loader.epoch(0) {
    ///     batch?;
    /// }
    /// assert!(loader.stats().most_bytes_in_flight <= (1 << 20) + 110_000);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn max_bytes_in_flight(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }
}
