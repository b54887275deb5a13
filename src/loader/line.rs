//! What an epoch that is being iterated and the iterator over epochs share: the epoch that follows.

use super::device_epoch::Sending;
use super::epoch::Pass;
use crate::batch::Batch;
use crate::pipeline::{Goes, Live, Pipeline};
use crate::sync::{Arc, Mutex};

/// The epoch that follows one, until the consumer comes to it.
///
/// (It has no reference to the loader, so that an epoch is as covariant as it looks: who comes to it, or to its end, has.)
pub(super) struct Line<B: Batch> {
    next: Mutex<Next<B>>,
}

struct Next<B: Batch> {
    /// Its number; `None` when the consumer came to it, or never will.
    number: Option<u64>,
    begun: Option<Begun<B>>,
}

/// An epoch that was begun.
pub(super) type Begun<B> = (Pass<B>, Option<Sending<B>>);

impl<B: Batch> Line<B> {
    pub(super) fn new(number: u64) -> Arc<Line<B>> {
        Arc::new(Line {
            next: Mutex::new(Next {
                number: Some(number),
                begun: None,
            }),
        })
    }

    /// Ends the wait for the epoch: its number, and what was begun of it. `None`: the wait was over.
    pub(super) fn take(&self) -> Option<(u64, Option<Begun<B>>)> {
        let mut next = self.next.lock();
        Some((next.number.take()?, next.begun.take()))
    }

    /// Takes the epoch for a while, to see to it; begins it behind `live` if it is time for that.
    ///
    /// Nobody holds the lock meanwhile: batches that are sent are the user's.
    pub(super) fn look_ahead<'a>(
        &'a self,
        pipeline: &'a Pipeline<B>,
        live: &Live,
        goes: Goes<'_>,
    ) -> Option<Waiting<'a, B>> {
        let (number, begun) = {
            let mut next = self.next.lock();
            (next.number?, next.begun.take())
        };
        let begun = match begun {
            Some(begun) => begun,
            None => {
                let (live, sent) = pipeline.begin_behind(live, number, goes)?;
                let sending = match goes {
                    Goes::ToDevice(device, depth) => {
                        sent.map(|sent| Sending::of(device, depth, sent))
                    }
                    Goes::ToHost | Goes::Unknown => None,
                };
                (Pass::new(live), sending)
            }
        };
        Some(Waiting {
            line: self,
            pipeline,
            begun: Some(begun),
        })
    }
}

/// An epoch that was begun, and that no consumer has come to: it waits on when this goes.
pub(super) struct Waiting<'a, B: Batch> {
    line: &'a Line<B>,
    pipeline: &'a Pipeline<B>,
    begun: Option<Begun<B>>,
}

impl<B: Batch> Waiting<'_, B> {
    pub(super) fn get(&mut self) -> Option<(&mut Pass<B>, Option<&mut Sending<B>>)> {
        let (pass, sending) = self.begun.as_mut()?;
        Some((pass, sending.as_mut()))
    }
}

impl<B: Batch> Drop for Waiting<'_, B> {
    fn drop(&mut self) {
        let Some(begun) = self.begun.take() else {
            return;
        };
        let mut next = self.line.next.lock();
        if next.number.is_some() {
            next.begun = Some(begun);
            return;
        }
        drop(next);
        // Meanwhile the consumer stopped waiting for it, on another thread.
        self.pipeline.end(&begun.0.live);
    }
}
