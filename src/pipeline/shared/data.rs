//! Epoch data and task data: what the shared state holds of an epoch and of an open task; and what becomes of a task that the consumer
//! takes.

use std::collections::VecDeque;

use super::decoding::Decoding;
use crate::device::{BytePermit, SlabQuota};
use crate::error::Result;
use crate::meter::Meter;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::lookahead::EndsPass;
use crate::pipeline::plan::epoch_plan::Destination;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::traits::{Build, Changes, Failed, OwnItems, Pull, TransferQueue};
use crate::sync::{Arc, Instant};
use crate::tensor::Offload;

/// What the shared state holds of one epoch.
pub(crate) struct EpochData<B> {
    pub(crate) epoch: u64,
    pub(crate) meter: Arc<Meter>,
    /// What its batches are for. Nothing is loaded until that is known.
    pub(crate) destination: Option<Destination>,
    /// Sends its tasks to a device as soon as they are made.
    pub(crate) queue: Option<Arc<dyn TransferQueue<B>>>,
    pub(crate) context: Option<Arc<EpochContext>>,
    /// The stream of its items, while no thread pulls from it; `None` for samples that have an index.
    pub(crate) stream: Option<Box<dyn Pull<B>>>,
    /// If the data set wants to know what comes: it hears that the pass is over when this is dropped.
    pub(crate) announced: Option<EndsPass>,
}

/// A task that was made.
pub(crate) enum Made<B> {
    Here(B),
    /// It was sent to its device, and is in the queue.
    Sent,
    /// It was sent, and some of its rows are being decoded. `None`: a thread has sent it, the decoder's thread makes it ready, and this
    /// value is not used.
    Decoding(Option<Arc<Decoding>>),
}

/// What the shared state holds of one open task.
pub(crate) struct TaskData<B> {
    pub(crate) context: Arc<EpochContext>,
    /// `None` once the task is being finished.
    pub(crate) build: Option<Arc<dyn Build<B>>>,
    /// The task, made.
    pub(crate) outcome: Option<Result<Made<B>>>,
    /// Why it failed; of several reasons, that of the first row.
    pub(crate) failure: Option<Failed>,
    /// When it began to wait for its slab.
    pub(crate) waiting_since: Option<Instant>,
    /// When it was handed to its device's decoder.
    pub(crate) decoding_since: Option<Instant>,
    /// Its memory is pageable although the loader pins.
    pub(crate) is_unpinned: bool,
    /// Its slabs' shares of the bytes in flight.
    pub(crate) permits: BytePermits,
    /// What became of samples that failed.
    pub(crate) changes: Option<Box<Changes>>,
    /// The items that were pulled for it, and how to make them again.
    pub(crate) own: Option<Box<OwnItems<B>>>,
}

/// A task that the consumer took.
pub(crate) struct Delivered<B> {
    pub(crate) context: Arc<EpochContext>,
    pub(crate) task: TaskId,
    pub(crate) outcome: Result<Made<B>>,
    pub(crate) changes: Option<Box<Changes>>,
    pub(crate) own: Option<Box<OwnItems<B>>>,
    /// What is in flight until it was sent.
    pub(crate) permits: BytePermits,
}

impl<B> Delivered<B> {
    /// Whether it is to be sent.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self.outcome, Ok(Made::Here(_)))
    }

    /// Takes what is to be sent.
    pub(crate) fn take_here(&mut self) -> Option<B> {
        match std::mem::replace(&mut self.outcome, Ok(Made::Sent)) {
            Ok(Made::Here(made)) => Some(made),
            outcome => {
                self.outcome = outcome;
                None
            }
        }
    }

    /// It was to be sent. `false`: it is still here.
    pub(crate) fn comes_back(&mut self, outcome: Result<Made<B>>) -> bool {
        self.outcome = outcome;
        if !self.is_here() {
            self.permits.end();
        }
        !self.is_here()
    }
}

/// Tasks that the consumer took in advance.
pub(crate) type Taken<B> = VecDeque<Delivered<B>>;

/// Shares of the bytes in flight: none, unless these are limited. (Tasks are moved often, so it is small.)
#[derive(Default)]
pub(crate) struct BytePermits(Option<Box<(Arc<BytePermit>, BytePermits)>>);

impl BytePermits {
    /// They are in flight no more.
    pub(crate) fn end(&self) {
        if let Some(permits) = &self.0 {
            permits.0.release();
            permits.1.end();
        }
    }

    pub(crate) fn add(&mut self, permit: Option<Arc<BytePermit>>) {
        if let Some(permit) = permit {
            self.0 = Some(Box::new((permit, std::mem::take(self))));
        }
    }
}

impl<B> TaskData<B> {
    pub(crate) fn new(context: Arc<EpochContext>, build: Option<Arc<dyn Build<B>>>) -> TaskData<B> {
        TaskData {
            context,
            build,
            outcome: None,
            failure: None,
            waiting_since: None,
            decoding_since: None,
            is_unpinned: false,
            permits: BytePermits::default(),
            changes: None,
            own: None,
        }
    }

    /// It was sent: what is pageable was read then, and is in flight no more.
    pub(crate) fn was_sent(&self) {
        if self.is_pageable() {
            self.permits.end();
        }
    }

    /// Its memory is pageable, so sending it takes as long as its copy.
    pub(super) fn is_pageable(&self) -> bool {
        self.is_unpinned || self.context.quota.is_none()
    }

    /// `ends`: its slabs are in flight no more.
    pub(crate) fn deliver(self, task: TaskId, ends: bool) -> Option<Delivered<B>> {
        if ends {
            self.permits.end();
        }
        let permits = match self.is_pageable() {
            true => self.permits,
            false => BytePermits::default(),
        };
        Some(Delivered {
            context: self.context,
            task,
            outcome: self.outcome?,
            changes: self.changes,
            own: self.own,
            permits,
        })
    }
}

impl<B> EpochData<B> {
    pub(crate) fn new(
        epoch: u64,
        meter: &Arc<Meter>,
        destination: Option<Destination>,
        queue: Option<Arc<dyn TransferQueue<B>>>,
        stream: Option<Box<dyn Pull<B>>>,
    ) -> EpochData<B> {
        EpochData {
            epoch,
            meter: Arc::clone(meter),
            destination,
            queue,
            context: None,
            stream,
            announced: None,
        }
    }

    pub(crate) fn quota(&self) -> Option<&Arc<SlabQuota>> {
        self.context.as_ref()?.quota.as_ref()
    }

    /// What its device does itself.
    pub(crate) fn offload(&self) -> Offload {
        match self.destination {
            Some(Destination::Device { offload, .. }) => offload,
            _ => Offload::default(),
        }
    }
}
