//! Batches that are sent to the device in parts, by whoever made the part.

use std::collections::VecDeque;

use super::schedule::Cut;
use crate::batch::{Batch, begin_part, send_part};
use crate::device::{Assembly, Device, Rows, Unsent};
use crate::error::{CollateError, Error, Result};
use crate::meter::Meter;
use crate::sync::{Arc, Mutex};

/// The batches of an epoch that are on their way to its device.
pub(crate) struct Arrivals<B: Batch> {
    device: Device,
    cut: Cut,
    meter: Arc<Meter>,
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
    /// The part that came first: the others must be like it.
    like: u64,
    /// The consumer waits for its memory, and the others leave that to it.
    is_awaited: bool,
    rows: usize,
    /// A part of it was not sent: it never will be whole.
    failed: bool,
    whole: Option<B::OnDevice>,
}

/// What became of a part.
pub(crate) enum Fate<B> {
    /// It is on its way, or nobody wants it any more.
    Sent,
    /// The consumer is not as far, or the device has no memory for it now.
    NotNow(B),
    Failed(Error),
    /// Its rows are not like those of this part of its batch.
    Unlike(u64, CollateError),
}

/// Who sends parts, with the type of batches on the device erased.
pub(super) trait Sends<B>: Send + Sync {
    /// Sends a part, unless it would have to wait for that.
    fn send(&self, part: u64, made: B) -> Fate<B>;
}

impl<B: Batch> Sends<B> for Arrivals<B> {
    fn send(&self, part: u64, made: B) -> Fate<B> {
        self.send_part(part, made, false)
    }
}

impl<B: Batch> Arrivals<B> {
    pub(super) fn new(device: &Device, cut: Cut, meter: Arc<Meter>) -> Arc<Arrivals<B>> {
        Arc::new(Arrivals {
            device: device.clone(),
            cut,
            meter,
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

    /// Sends a part. `waits`: for device memory that the program gave back, and whose kernels have not run. The consumer
    /// does so, for the batch that it comes to; meanwhile nobody holds the lock.
    pub(crate) fn send_part(&self, part: u64, made: B, waits: bool) -> Fate<B> {
        // Without the lock: what finished copies held may be the program's.
        self.device.inner.settle();
        match self.send_now(part, made, waits, None) {
            Fate::NotNow(made) if waits => {
                let memory = begin_part(&made, &self.device, self.rows(part));
                self.send_now(part, made, waits, Some(memory))
            }
            sent => sent,
        }
    }

    fn rows(&self, part: u64) -> Rows {
        Rows {
            first: self.cut.first_row(part),
            count: self.cut.rows(part),
            of: self.cut.batch_rows(self.cut.batch_of(part)),
        }
    }

    /// Sends a part, with the memory that was waited for, or why there is none.
    ///
    /// The lock is held meanwhile, so that parts of one batch are copied in the order in which they are entered, and the
    /// event behind the last is behind them all. What runs under it is enqueueing: the batches' functions are this crate's.
    fn send_now(
        &self,
        part: u64,
        made: B,
        waits: bool,
        memory: Option<Result<Assembly>>,
    ) -> Fate<B> {
        let batch = self.cut.batch_of(part);
        let rows = self.rows(part);
        let mut state = self.state.lock();
        let Some(index) = batch.checked_sub(state.first) else {
            return Fate::Sent; // its batch is given up
        };
        if batch >= state.most {
            return Fate::NotNow(made);
        }
        while state.batches.len() as u64 <= index {
            state.batches.push_back(Arriving {
                assembly: None,
                like: part,
                is_awaited: false,
                rows: 0,
                failed: false,
                whole: None,
            });
        }
        // In the batches' order: what one takes ahead of time must not be missing to another that is asked for before it.
        let begun = |arriving: &Arriving<B>| arriving.failed || arriving.assembly.is_some();
        let before = index.checked_sub(1).map(|index| index as usize);
        if before.is_some_and(|index| !begun(&state.batches[index])) {
            return Fate::NotNow(made);
        }
        let arriving = &mut state.batches[index as usize];
        if arriving.failed {
            return Fate::Sent;
        }
        if arriving.assembly.is_none() {
            match memory {
                Some(Ok(memory)) => arriving.assembly = Some(memory),
                Some(Err(error)) => {
                    arriving.failed = true;
                    return Fate::Failed(error);
                }
                None if arriving.is_awaited => return Fate::NotNow(made),
                None => {}
            }
            arriving.like = part;
        }
        let last = arriving.rows + rows.count == rows.of;
        match send_part(made, &self.device, rows, last, &mut arriving.assembly) {
            Ok(whole) => {
                arriving.rows += rows.count;
                self.meter.batches.add(u64::from(whole.is_some()));
                arriving.whole = whole;
                Fate::Sent
            }
            Err((Some(made), Unsent::Failed(Error::DeviceBudget { .. }))) => {
                arriving.is_awaited = waits;
                Fate::NotNow(made)
            }
            Err((_, error)) => {
                arriving.failed = true;
                match error {
                    Unsent::Failed(error) => Fate::Failed(error),
                    Unsent::Unlike(error) => Fate::Unlike(arriving.like, error),
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
