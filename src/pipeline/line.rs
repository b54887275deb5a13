//! Epochs that follow each other: the next is begun before the consumer comes to it, so that workers load across the
//! boundary as they do from one batch to the next.
//!
//! Until the consumer comes to it, an epoch is *behind* the one before ([`Behind`](super::schedule::Behind)): workers open
//! its batches when all of the other's are open, both together have no more ahead than one epoch has, and both take their
//! slabs from one account. So page-locked memory does not grow at a boundary.

use super::Pipeline;
use super::arrivals::Arrivals;
use super::board::{Destination, Entering, Live};
use super::schedule::Cut;
use crate::batch::Batch;
use crate::device::{Account, Device};
use crate::sync::Arc;

/// Where the batches of an epoch go that nobody came to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goes<'a> {
    /// To the program, on the host.
    ToHost,
    /// To a device, so many ahead.
    ToDevice(&'a Device, usize),
    /// That is said when the consumer comes to it.
    Unknown,
}

/// An epoch that was begun: how it is cut, and where its parts arrive, if it goes to a device.
pub(crate) type Begun<B> = (Live, Option<(Cut, Option<Arc<Arrivals<B>>>)>);

impl<B: Batch> Pipeline<B> {
    /// Begins an epoch behind this one, if it is time for that: workers will soon have nothing else to do. They are left asleep,
    /// as by [`next`](Pipeline::next): the consumer has a batch to come to first.
    ///
    /// `None` as well where it is to be loaded in another way than this one, which needs other slabs: they are not
    /// page-locked beside those that are there.
    pub(crate) fn begin_behind(&self, live: &Live, epoch: u64, goes: Goes<'_>) -> Option<Begun<B>> {
        if !self.board.lock().epoch(live)?.schedule.is_ending() {
            return None;
        }
        let (destination, parts) = match goes {
            Goes::ToHost => (Some(Destination::Host), None),
            Goes::Unknown if self.destination_matters() => return None,
            Goes::Unknown => (Some(Destination::Host), None),
            Goes::ToDevice(device, _) => (None, self.parts_to(device)),
        };
        if parts.map_or(1, |parts| parts.count as u64) != live.parts() {
            return None;
        }
        let entering = Entering {
            epoch,
            account: live.account.as_ref().map(Account::share),
            destination,
            after: Some(live.clone()),
            goes_on: true,
        };
        let begun = self.board.lock().enter(entering, &self.options);
        let sent = match goes {
            Goes::ToDevice(device, depth) => Some(self.send_in(&begun, device, depth, parts)),
            Goes::ToHost | Goes::Unknown => None,
        };
        Some((begun, sent))
    }

    /// The consumer comes to an epoch that was begun behind another. `false`: that one has batches to come, and the slabs
    /// of one epoch are not enough for both, so that it is better begun afresh.
    pub(crate) fn come_to(&self, live: &Live) -> bool {
        let mut board = self.board.lock();
        let may_stay = board.come_to(live);
        self.wake(&mut board);
        may_stay
    }
}
