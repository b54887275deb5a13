//! Batches that are sent to the device in parts, by whoever made the part.

use std::collections::VecDeque;

use super::schedule::Cut;
use crate::batch::{Batch, send_part};
use crate::device::{Assembly, Device, Rows, Unsent};
use crate::error::{CollateError, Error};
use crate::sync::{Arc, Mutex};

/// The batches of an epoch that are on their way to its device.
pub(crate) struct Arrivals<B: Batch> {
    device: Device,
    cut: Cut,
    state: Mutex<State<B>>,
}

struct State<B: Batch> {
    /// Those from number `first` on, as far as parts of them came.
    batches: VecDeque<Arriving<B>>,
    first: u64,
    /// Parts of the batches before this one may be sent.
    most: u64,
}

struct Arriving<B: Batch> {
    assembly: Option<Assembly>,
    rows: usize,
    /// A part of it was not sent: it never will be whole.
    failed: bool,
    whole: Option<B::OnDevice>,
}

/// What became of a part.
pub(crate) enum Sent<B> {
    /// It is on its way, or nobody wants it any more.
    Sent,
    /// The consumer is not as far, or the device has no memory for it now.
    NotNow(B),
    Failed(Error),
    /// Its rows are not like those of its batch's other parts.
    Unlike(CollateError),
}

/// Who sends parts, with the type of batches on the device erased.
pub(super) trait Sends<B>: Send + Sync {
    /// Sends a part, unless it would have to wait for that.
    fn send(&self, part: u64, made: B) -> Sent<B>;
}

impl<B: Batch> Sends<B> for Arrivals<B> {
    fn send(&self, part: u64, made: B) -> Sent<B> {
        self.send_part(part, made, false)
    }
}

impl<B: Batch> Arrivals<B> {
    pub(super) fn new(device: &Device, cut: Cut) -> Arc<Arrivals<B>> {
        Arc::new(Arrivals {
            device: device.clone(),
            cut,
            state: Mutex::new(State {
                batches: VecDeque::new(),
                first: 0,
                most: 0,
            }),
        })
    }

    /// Lets parts of all batches before this one be sent.
    pub(crate) fn allow(&self, most: u64) {
        let mut state = self.state.lock();
        state.most = state.most.max(most);
    }

    /// Sends a part. `waits`: for device memory that the program gave back, and whose kernels have not run.
    ///
    /// The lock is held meanwhile, so that parts of one batch are copied in the order in which they are entered, and the
    /// event behind the last is behind them all. What runs under it is enqueueing: the batches' functions are this crate's.
    pub(crate) fn send_part(&self, part: u64, made: B, waits: bool) -> Sent<B> {
        let batch = self.cut.batch_of(part);
        let rows = Rows {
            first: self.cut.first_row(part),
            count: self.cut.rows(part),
            of: self.cut.batch_rows(batch),
        };
        let mut state = self.state.lock();
        let Some(index) = batch.checked_sub(state.first) else {
            return Sent::Sent; // its batch is given up
        };
        if batch >= state.most {
            return Sent::NotNow(made);
        }
        while state.batches.len() as u64 <= index {
            state.batches.push_back(Arriving {
                assembly: None,
                rows: 0,
                failed: false,
                whole: None,
            });
        }
        let arriving = &mut state.batches[index as usize];
        if arriving.failed {
            return Sent::Sent;
        }
        let last = arriving.rows + rows.count == rows.of;
        match send_part(
            made,
            &self.device,
            rows,
            last,
            waits,
            &mut arriving.assembly,
        ) {
            Ok(whole) => {
                arriving.rows += rows.count;
                arriving.whole = whole;
                Sent::Sent
            }
            Err((Some(made), Unsent::Failed(Error::DeviceBudget { .. }))) if !waits => {
                Sent::NotNow(made)
            }
            Err((_, error)) => {
                arriving.failed = true;
                match error {
                    Unsent::Failed(error) => Sent::Failed(error),
                    Unsent::Unlike(error) => Sent::Unlike(error),
                }
            }
        }
    }

    /// Takes a batch out, whose parts all came, or failed. Those before it are gone.
    pub(crate) fn take(&self, batch: u64) -> Option<B::OnDevice> {
        let mut gone = Vec::new();
        {
            let mut state = self.state.lock();
            while state.first <= batch {
                gone.extend(state.batches.pop_front());
                state.first += 1;
            }
        }
        gone.pop()?.whole
    }
}
