//! Passes: which iteration of which epoch samples are announced for.

/// One pass over the data set: an epoch that a program iterates. It stands beside the samples that
/// [`Dataset::will_need`](super::Dataset::will_need) is told of.
///
/// # Examples
///
/// What is kept for a pass is dropped when the pass is over:
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Mutex;
///
/// use pinfeed::dataset::Pass;
/// use pinfeed::{BoxError, DataLoader, Dataset, SampleRng};
///
/// /// Tells which samples are about to be loaded.
/// #[derive(Default)]
/// struct Watched(Mutex<HashMap<u64, Vec<u64>>>);
///
/// impl Dataset for Watched {
///     type Sample = i64;
///
///     fn len(&self) -> u64 {
///         100
///     }
///
///     fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
///         Ok(index as i64)
///     }
///
///     fn lookahead(&self) -> usize {
///         20
///     }
///
///     fn will_need(&self, indices: &[u64], pass: Pass) {
///         self.0.lock().unwrap().entry(pass.id()).or_default().extend(indices);
///     }
///
///     fn pass_ended(&self, pass: Pass) {
///         self.0.lock().unwrap().remove(&pass.id());
///     }
/// }
///
/// let watched = std::sync::Arc::new(Watched::default());
/// let loader = DataLoader::builder(watched.clone()).batch_size(10).build()?;
/// let mut epoch = loader.epoch(3);
/// epoch.next();
/// let told: Vec<u64> = watched.0.lock().unwrap().values().flatten().copied().collect();
/// assert_eq!(told, (0..30).collect::<Vec<_>>());
/// drop(epoch); // before its end
/// assert!(watched.0.lock().unwrap().is_empty());
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    pub(crate) id: u64,
    pub(crate) epoch: u64,
    /// How many samples of the pass have been announced, with those that it stands beside.
    pub(crate) announced: u64,
    /// How many of the first of them are done with: no worker will get them any more.
    pub(crate) settled: u64,
    /// The position of the epoch's order behind the last global batch that has samples which have been announced.
    pub(crate) reached: u64,
    /// The position before which all samples are done with.
    pub(crate) done: u64,
    /// The session that it belongs to: its passes follow each other, so none waits for what a later one has. 0: that is not known.
    pub(crate) line: u64,
    /// As how many sessions the program shares the rank's batches.
    pub(crate) share: u64,
    /// How long a sample of the loader's may take.
    pub(crate) timeout: Option<std::time::Duration>,
}

impl Pass {
    /// Makes a pass by hand, to call a data set's methods without a loader. Loaders choose numbers from 1 on.
    pub fn new(id: u64, epoch: u64) -> Pass {
        Pass {
            id,
            epoch,
            announced: 0,
            settled: 0,
            reached: 0,
            done: 0,
            line: 0,
            share: 1,
            timeout: None,
        }
    }

    /// Returns the number of the pass: no other of this process has it, not even one of the same epoch.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number of the pass, as samples' generators have it.
    pub(crate) fn short_id(&self) -> u32 {
        self.id as u32 | 1 << 31
    }

    /// Returns the number of the epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}
