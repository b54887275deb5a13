//! Lines: an epoch begins, others follow it, the consumer comes to them and leaves them.
//!
//! Epochs that follow each other are one line of units, so workers load across the boundary as they do from one batch to the next:
//! with one window, one order of slabs, and one share of page-locked memory. An epoch is planned when workers will soon have nothing
//! else to do. Two cases are not worth two shares of slabs, and the boundary is waited for: an epoch whose plan does not
//! [join](super::plan::Plan::joins) the one before, and one that the program takes out while the one before has batches to come.

use super::Pipeline;
use super::line::Segment;
use super::outbox::{Outbox, Sends};
use super::plan::{Destination, Plan, destination_matters, plan};
use crate::batch::Batch;
use crate::device::{Account, Device};
use crate::meter::Meter;
use crate::sync::{Arc, Condvar};

/// An epoch of a line, as its consumer holds it.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(super) line: u64,
    pub(super) segment: u64,
    pub(crate) epoch: u64,
    pub(crate) meter: Arc<Meter>,
    /// The line's consumer sleeps here.
    pub(super) ready: Arc<Condvar>,
    /// It is one of several, which share its slabs.
    is_followed: bool,
}

impl<B: Batch> Pipeline<B> {
    /// Begins a line with one epoch, and lets workers load it. `is_followed`: others will follow.
    pub(crate) fn begin(&self, epoch: u64, is_followed: bool) -> Seat {
        let ready = Arc::new(Condvar::new());
        let meter = Arc::<Meter>::default();
        let seat = {
            let mut board = self.lock();
            let line = board.enter(Arc::clone(&ready), self.is_wide.get().copied());
            let segment = Segment::new(epoch, &meter, None, None);
            let segments = board.line(line).map(|line| &mut line.schedule);
            let id = segments.map_or(0, |segments| segments.append(segment, true));
            Seat {
                line,
                segment: id,
                epoch,
                meter,
                ready,
                is_followed,
            }
        };
        if !self.destination_matters() {
            self.decide(&seat, Destination::Host);
        }
        seat
    }

    /// Appends an epoch that follows that of the seat. `to`: its batches go where those of this outbox go, so many ahead.
    pub(crate) fn append(
        &self,
        seat: &Seat,
        epoch: u64,
        to: Option<(&Arc<Outbox<B>>, usize)>,
    ) -> (Seat, Option<Arc<Outbox<B>>>) {
        let meter = Arc::<Meter>::default();
        let destination = to.map(|(before, depth)| self.destination(before.device(), depth));
        let outbox = to.map(|(before, _)| {
            let batches = self.options.cut().batches();
            Outbox::new(before.device(), batches, 0, Some(before))
        });
        let sends = outbox.clone().map(|outbox| outbox as Arc<dyn Sends<B>>);
        let segment = Segment::new(epoch, &meter, destination, sends);
        let mut board = self.lock();
        let (lines, bin) = board.parts();
        let id = match lines.line(seat.line) {
            Some(line) => line.schedule.append(segment, false),
            None => unreachable!("a line is there as long as somebody holds one of its seats"),
        };
        bin.wake_workers = true; // short epochs may be planned at once
        let seat = Seat {
            segment: id,
            epoch,
            meter,
            ..seat.clone()
        };
        (seat, outbox)
    }

    /// The consumer comes to an epoch that was appended. `false`: the one before has batches to come, and the slabs of one epoch are
    /// not enough for both, so that this one is better begun afresh.
    pub(crate) fn come_to(&self, seat: &Seat) -> bool {
        // Where no worker found the time, and while the epoch before is there to be joined.
        self.plan_early(seat.line, seat.segment);
        let destination = {
            let mut board = self.lock();
            let (lines, bin) = board.parts();
            let Some(line) = lines.line(seat.line) else {
                return false;
            };
            bin.wake_workers = true;
            if !line
                .schedule
                .come_to(seat.segment, &mut bin.left_over().segments)
            {
                let left_over = bin.left_over();
                line.schedule
                    .truncate(&mut left_over.segments, &mut left_over.slots);
                return false;
            }
            if line
                .schedule
                .first()
                .0
                .checked_add(self.options.samples)
                .is_none()
            {
                // After so many samples, the units of a new line are counted from 0 again.
                let left_over = bin.left_over();
                let (segments, slots) = (&mut left_over.segments, &mut left_over.slots);
                line.schedule.leave(seat.segment, segments, slots);
                lines.remove_if_over(seat.line);
                return false;
            }
            if line.schedule.planned_of(seat.segment).is_some() {
                return true;
            }
            let segment = line.schedule.segment(seat.segment);
            segment.and_then(|segment| segment.destination)
        };
        // It is made in another way than the one before, which is used up.
        let destination =
            destination.or_else(|| (!self.destination_matters()).then_some(Destination::Host));
        if let Some(destination) = destination {
            self.decide(seat, destination);
        }
        true
    }

    /// Whoever holds the seat leaves it: nobody waits, and a worker that is at it finds out when it reports.
    pub(crate) fn leave(&self, seat: &Seat) {
        let following = {
            let mut board = self.lock();
            let line = board.line(seat.line);
            line.and_then(|line| line.schedule.behind(seat.segment))
        };
        if let Some(following) = following {
            // While this one is there to be joined.
            self.plan_early(seat.line, following);
        }
        let mut board = self.lock();
        let (lines, bin) = board.parts();
        if let Some(line) = lines.line(seat.line) {
            let left_over = bin.left_over();
            let (segments, slots) = (&mut left_over.segments, &mut left_over.slots);
            line.schedule.leave(seat.segment, segments, slots);
            lines.remove_if_over(seat.line);
            bin.wake_workers = true; // for what was waiting behind it
            bin.tell_pin_thread = true;
        }
    }

    /// Nobody will come to the epochs of the seat's line that were appended.
    pub(crate) fn truncate(&self, seat: &Seat) {
        let mut board = self.lock();
        let (lines, bin) = board.parts();
        if let Some(line) = lines.line(seat.line) {
            let left_over = bin.left_over();
            line.schedule
                .truncate(&mut left_over.segments, &mut left_over.slots);
            lines.remove_if_over(seat.line);
            bin.tell_pin_thread = true;
        }
    }

    /// The program gets the batches on the host, as it turns out.
    pub(super) fn keep_on_host(&self, seat: &Seat) {
        self.decide(seat, Destination::Host);
    }

    /// The batches that are not open yet go to a device, `depth` ahead. Returns where they arrive. `given`: how many batches the
    /// program has.
    pub(crate) fn send_to(
        &self,
        seat: &Seat,
        device: &Device,
        depth: usize,
        given: u64,
    ) -> Arc<Outbox<B>> {
        let outbox = Outbox::new(device, self.options.cut().batches(), given, None);
        // First, so that the first units find it.
        self.set_outbox(seat, &outbox);
        self.decide(seat, self.destination(device, depth));
        outbox
    }

    fn set_outbox(&self, seat: &Seat, outbox: &Arc<Outbox<B>>) {
        let mut board = self.lock();
        let line = board.line(seat.line);
        let segment = line.and_then(|line| line.schedule.segment(seat.segment));
        if let Some(segment) = segment {
            segment.outbox = Some(Arc::clone(outbox) as Arc<dyn Sends<B>>);
        }
    }

    fn destination(&self, device: &Device, depth: usize) -> Destination {
        let pinning = self.options.pinning.as_ref();
        let is = |same: fn(&Device, &Device) -> bool| {
            pinning.is_some_and(|pinning| !pinning.by_copy && same(&pinning.device, device))
        };
        Destination::Device {
            backend: device.inner.driver.backend(),
            depth,
            pins: is(|ours, other| Arc::ptr_eq(&ours.inner, &other.inner)),
            gathers: is(|ours, other| ours.inner.driver.same_device(&other.inner.driver)),
        }
    }

    /// Where a device could gather the samples itself, or batches would be cut into parts, loading waits until it is known
    /// whether that is wanted.
    fn destination_matters(&self) -> bool {
        destination_matters(&self.options, self.machine(), self.recipe.hints())
    }

    fn plan_for(&self, destination: Destination, is_followed: bool) -> Plan {
        let (machine, hints) = (self.machine(), self.recipe.hints());
        plan(&self.options, machine, hints, destination, is_followed)
    }

    /// It is known what the batches are for. An epoch that nobody planned is planned; one that is loaded for the host, and turns out to
    /// go to a device, stays as it is planned, but for the number of its slabs.
    fn decide(&self, seat: &Seat, destination: Destination) {
        if self.is_planned_for(seat, destination) {
            return;
        }
        let plan = self.plan_for(destination, seat.is_followed);
        // First, so that whoever asks for a slab finds that there may be some.
        let account = self.open_account(&plan);
        let mut board = self.lock();
        let (lines, bin) = board.parts();
        let line = lines.line(seat.line);
        let pass = line.and_then(|line| line.enter_plan(seat.segment, plan, account.clone()));
        bin.wake_workers = true;
        if pass.is_none() {
            bin.left_over().accounts.extend(account);
        }
    }

    /// Notes what the batches are for. `true`: the epoch is planned, and nothing is left to be decided.
    fn is_planned_for(&self, seat: &Seat, destination: Destination) -> bool {
        let mut board = self.lock();
        let (lines, bin) = board.parts();
        let line = lines.line(seat.line);
        let Some(segment) = line.and_then(|line| line.schedule.segment(seat.segment)) else {
            return true;
        };
        segment.destination = Some(destination);
        let Some(pass) = &segment.pass else {
            return false;
        };
        if let Some(account) = pass.account.clone().filter(|_| !pass.plan().is_cut()) {
            let slabs = self.options.share(destination.depth(), seat.is_followed);
            bin.left_over().limits.push((account, slabs));
            bin.tell_pin_thread = true;
        }
        true
    }

    fn open_account(&self, plan: &Plan) -> Option<Arc<Account>> {
        let ring = &self.options.pinning.as_ref()?.device.inner.ring;
        let is_wide = self.is_wide.get() == Some(&true);
        Some(Account::open(ring, plan.kind(), plan.slabs(is_wide)))
    }

    /// Plans an epoch that follows another, before the consumer comes to it. If their plans join, they are loaded as if they were one.
    pub(super) fn plan_early(&self, line: u64, segment: u64) {
        let destination = {
            let mut board = self.lock();
            let schedule = board.line(line).map(|line| &mut line.schedule);
            let Some(schedule) = schedule.filter(|schedule| schedule.planned_of(segment).is_none())
            else {
                return;
            };
            let own = schedule.segment(segment).and_then(|own| own.destination);
            // Where the program took the batches of the epoch before on the host, it is going to do so again.
            let before = schedule
                .before(segment)
                .and_then(|before| before.destination);
            own.or(before.filter(|before| *before == Destination::Host))
        };
        let destination =
            destination.or_else(|| (!self.destination_matters()).then_some(Destination::Host));
        let plan = destination.map(|destination| self.plan_for(destination, true));
        let mut board = self.lock();
        let (lines, bin) = board.parts();
        let Some(line) = lines.line(line) else {
            return;
        };
        let Some(plan) = plan else {
            return line.schedule.plan_late(segment);
        };
        let Some(before) = line.schedule.before(segment) else {
            return; // the consumer has come to it, and plans it himself
        };
        let before = before
            .pass
            .as_ref()
            .and_then(|before| before.account.as_ref());
        let account = before.map(Account::share);
        match line.enter_plan(segment, plan, account.clone()) {
            Some(_) => {
                if let Some(segment) = line.schedule.segment(segment) {
                    segment.destination = destination;
                }
                bin.wake_workers = true;
            }
            None => bin.left_over().accounts.extend(account),
        }
    }
}
