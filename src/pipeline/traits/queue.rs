//! What is asked of a transfer queue.

use crate::device::{Device, Undecoded, WhenDecoded};
use crate::error::{CollateError, Error};
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::TaskId;

/// What became of a task that was to be sent.
pub(crate) enum SendOutcome<B> {
    /// It is on its way; or it was dropped, because it is not wanted any more.
    Sent,
    /// It is on its way, and pictures are to be decoded when it is there. Until then the batch is not to be given out.
    Decodes(Undecoded),
    /// Its turn has not come, or the device has no memory for it now.
    NotNow(B),
    Failed(Error),
    /// Its rows do not match those of this part of its batch.
    Unlike(TaskId, CollateError),
}

impl<B> SendOutcome<B> {
    pub(crate) fn sent(undecoded: Undecoded) -> SendOutcome<B> {
        match undecoded.is_empty() {
            true => SendOutcome::Sent,
            false => SendOutcome::Decodes(undecoded),
        }
    }
}

/// Tasks that follow each other, with something of each.
pub(crate) type Each<T> = Vec<(TaskId, T)>;

/// A transfer queue, with the type of batches on the device erased.
pub(crate) trait TransferQueue<B>: Send + Sync {
    /// Sends a task. `waits`: if need be, waits for device memory that the program gave back and whose kernels have not run. The consumer
    /// does so for the batch that it comes to. It holds no lock meanwhile.
    fn send(&self, context: &EpochContext, task: TaskId, made: B, waits: bool) -> SendOutcome<B>;

    /// Sends tasks that are whole batches, and follow each other, together if that is possible; else one by one.
    fn send_together(&self, context: &EpochContext, tasks: Each<B>) -> Each<SendOutcome<B>>;

    /// Has rows decoded that were sent.
    fn decode(&self, undecoded: Undecoded, when_decoded: WhenDecoded);

    /// The device whose decoder does that.
    fn device(&self) -> &Device;

    /// A task that was sent will come again: what was sent of it is not given out.
    fn take_back(&self, context: &EpochContext, task: TaskId);

    /// Notes that the epoch's batches are small, and come in runs: more of them may be on their way than was asked for, so that they can be
    /// sent together.
    fn note_runs(&self);

    /// A task of the batch failed before it could be sent, so later batches do not wait for this one.
    fn give_up(&self, batch: u64, task: TaskId);

    /// The epoch has that many batches, as its stream has ended. Returns how many of the epoch after it may be sent.
    fn ends(&self, batches: u64) -> u64;

    /// Allows the first `batches` batches to be sent, before the consumer has come to the epoch.
    fn allow_first(&self, batches: u64);

    /// What may be sent now.
    fn window(&self) -> SendWindow;
}

/// What a transfer queue lets be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SendWindow {
    /// The first batch whose tasks may not be sent yet. In any order: tasks of any batch may be (`u64::MAX`), or of none (0).
    pub(crate) allowed: u64,
    /// The first batch that is beyond what the program asked for. From it on, batches are sent only in groups of `together`.
    pub(crate) asked: u64,
    /// How many tasks may be sent together.
    pub(crate) together: usize,
    /// A batch is so large that sending it is left to a worker that sleeps.
    pub(crate) is_large: bool,
    /// Changes when a task that was not sent may have its turn: a batch of the epoch, or of the one before, began or failed, or the
    /// consumer allows more.
    pub(crate) progress: [u64; 2],
}

impl SendWindow {
    /// Whether so many batches from this one on may be sent. Beyond what the program asked for, only whole groups may: a thread that sends
    /// each batch as it comes is busy with sending, and the consumer would fall behind batches that are there.
    pub(crate) fn lets(&self, first: u64, count: usize) -> bool {
        first < self.asked || count >= self.together
    }
}
