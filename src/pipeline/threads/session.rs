//! Seats: a consumer begins an epoch, appends others, comes to them and leaves them.
//!
//! Epochs that follow each other are one line of units, so workers load across the boundary as they do from one batch to the next:
//! with one window, one order of slabs, and one share of page-locked memory. An epoch is planned when workers will soon have nothing
//! else to do. In two cases that would take twice the slabs, and nothing is loaded across the boundary: if the plan does not
//! [join](crate::pipeline::plan::epoch_plan::EpochPlan::joins) the one before, or if the program takes the epoch while the one before has batches to come.

use super::pipeline::{FORKED, Pipeline};
use crate::batch::Batch;
use crate::device::{Account, Target};
use crate::pipeline::epoch::Pass;
use crate::pipeline::lookahead::Announcer;
use crate::pipeline::plan::delivered::Progress;
use crate::pipeline::plan::epoch_plan::{Destination, EpochPlan, destination_matters, plan};
use crate::pipeline::plan::lister::Batching;
use crate::pipeline::plan::options::Portion;
use crate::pipeline::plan::partition::{Cut, Start};
use crate::pipeline::schedule::Unit;
use crate::pipeline::shared::data::EpochSlot;
use crate::pipeline::traits::{Beginning, Pull, Reached, Seat, Sends, StreamStart};
use crate::pipeline::transfer::queue::Outbox;
use crate::sync::{Arc, Condvar, Mutex, planted};

impl<B: Batch> Pipeline<B> {
    /// Begins a line with one epoch, and lets workers load it.
    pub(crate) fn begin(&self, beginning: Beginning) -> Seat {
        let Beginning {
            start,
            state,
            is_followed,
            share,
            is_apart,
        } = beginning;
        self.options().batching.refuse_itself();
        let (stream, reached) = self.stream(start, state);
        if self.has_lost_threads() {
            return Seat::without_line(start, share, reached, self.options().any_order);
        }
        let unit_ready = Arc::new(Condvar::new());
        let meter = match is_apart {
            true => self.meters.apart(start.epoch),
            false => self.meters.add(start.epoch),
        };
        let announcer = self
            .announcing
            .as_ref()
            .map(|shared| Announcer::new(shared, share));
        let mut slot = EpochSlot::new(start.epoch, &meter, None, None, stream);
        slot.announced = announcer.as_ref().map(|announcer| announcer.append(start));
        let seat = {
            let mut board = self.lock();
            if board.duty.begin() && !planted("a line begins in silence") {
                self.off_duty.notify_all();
            }
            let is_wide = self.is_wide.get().copied();
            let at_once = self.options[share.device].at_once;
            let line = board.add_line(share, Arc::clone(&unit_ready), is_wide, at_once);
            let segment = board.append(line, slot, true);
            Seat {
                line,
                share,
                segment,
                start,
                meter,
                progress: Arc::new(Progress::new(start.given, self.options().any_order)),
                reached,
                unit_ready,
                announcer,
                is_followed,
            }
        };
        if let Some(destination) = self.assumed_destination(seat.share.device) {
            self.decide(&seat, destination);
        }
        seat
    }

    /// The batches of a seat. Where threads were lost, one of them may be in the batch sampler for ever: then there is one batch, in whose
    /// place the error comes.
    pub(crate) fn cut(&self, seat: &Seat) -> Cut {
        let options = &self.options[seat.share.device];
        match &options.batching {
            Batching::Listed(_) if self.has_lost_threads() => Cut::not_resumed(FORKED.to_owned()),
            _ => options.cut(seat.start, seat.share),
        }
    }

    /// Appends an epoch that follows the seat's, whose cut has so many `batches`. `to`: its batches go to the device of this outbox, that many
    /// ahead.
    pub(crate) fn append(
        &self,
        seat: &Seat,
        batches: u64,
        epoch: u64,
        to: Option<(&Arc<Outbox<B>>, usize)>,
    ) -> (Seat, Option<Arc<Outbox<B>>>) {
        let start = Start::of(epoch);
        let options = &self.options[seat.share.device];
        let meter = self.meters.add(epoch);
        let destination =
            to.map(|(before, depth)| options.destination(before.target().device(), depth));
        let is_dense = self.recipe.hints().is_dense;
        let outbox = to.map(|(before, _)| {
            let (target, before) = (before.target(), Some((before, batches)));
            Outbox::new(target, start.given, options.any_order, is_dense, before)
        });
        let sends = outbox.clone().map(|outbox| outbox as Arc<dyn Sends<B>>);
        let (stream, reached) = self.stream(start, None);
        let mut slot = EpochSlot::new(epoch, &meter, destination, sends, stream);
        let announcer = seat.announcer.as_ref();
        slot.announced = announcer.map(|announcer| announcer.append(start));
        let mut board = self.lock();
        let segment = board.append(seat.line, slot, false);
        board.bin.wake_workers = true; // short epochs may be planned at once
        let seat = Seat {
            segment,
            start,
            meter,
            progress: Arc::new(Progress::new(start.given, options.any_order)),
            reached,
            ..seat.clone()
        };
        (seat, outbox)
    }

    /// The stream of an epoch, not opened yet; and where it stands.
    #[expect(clippy::type_complexity, reason = "a pair of options")]
    fn stream(
        &self,
        start: Start,
        state: Option<Vec<u8>>,
    ) -> (Option<Box<dyn Pull<B>>>, Option<Arc<Mutex<Reached>>>) {
        if !self.options().is_stream {
            return (None, None);
        }
        let items = start.position / self.options().lanes;
        let reached = Reached {
            items,
            state: state.clone(),
            ..Reached::default()
        };
        let stream = self.recipe.stream(StreamStart {
            epoch: start.epoch,
            items,
            state,
        });
        (stream, Some(Arc::new(Mutex::new(reached))))
    }

    /// The consumer comes to an epoch that was appended. `false`: the one before has batches to come, and slabs for one epoch are
    /// not enough for both, so this one must begin a line of its own.
    pub(crate) fn come_to(&self, seat: &Seat) -> bool {
        if self.has_lost_threads() {
            return true; // its first batch says so
        }
        // In case no worker found the time: while the epoch before is still there to be joined.
        self.plan_early(seat.line, seat.segment);
        let options = &self.options[seat.share.device];
        let most_units = options.most_units();
        let destination = {
            let mut board = self.lock();
            let Some((line, bin)) = board.line(seat.line) else {
                return false;
            };
            bin.wake_workers = true;
            let schedule = &mut line.schedule;
            if !schedule.come_to(seat.segment, bin.removed()) {
                schedule.truncate(bin.removed());
                return false;
            }
            let Unit(first) = schedule.first();
            if first.checked_add(most_units).is_none() {
                // Unit numbers would overflow. Those of a new line begin at 0.
                schedule.leave(seat.segment, bin.removed());
                board.remove_if_over(seat.line);
                return false;
            }
            if schedule.is_planned(seat.segment) {
                return true;
            }
            let slot = schedule.epoch(seat.segment);
            slot.and_then(|slot| slot.destination)
        };
        // Its plan did not join the one before, which is used up now.
        if let Some(destination) =
            destination.or_else(|| self.assumed_destination(seat.share.device))
        {
            self.decide(seat, destination);
        }
        true
    }

    /// The consumer leaves its epoch. It waits for nobody: workers that are busy with a unit find out when they report.
    pub(crate) fn leave(&self, seat: &Seat) {
        if self.has_lost_threads() {
            return;
        }
        let following = {
            let mut board = self.lock();
            let line = board.line(seat.line);
            line.and_then(|(line, _)| {
                // If its stream has not ended, it ends here.
                line.schedule.close_end(seat.segment);
                line.schedule.id_after(seat.segment)
            })
        };
        // (What is dropped should not have to wait for a batch sampler.)
        let is_even = matches!(self.options[seat.share.device].batching, Batching::Even(_));
        if let Some(following) = following.filter(|_| is_even) {
            // While this one is still there to be joined.
            self.plan_early(seat.line, following);
        }
        let mut board = self.lock();
        if let Some((line, bin)) = board.line(seat.line) {
            line.schedule.leave(seat.segment, bin.removed());
            bin.wake_workers = true; // for the epochs that waited for this one
            bin.tell_pin_thread(line.share.device);
            board.remove_if_over(seat.line);
        }
    }

    /// Gives up the epochs that were appended to the seat's line: nobody will come to them.
    pub(crate) fn truncate(&self, seat: &Seat) {
        if self.has_lost_threads() {
            return;
        }
        let mut board = self.lock();
        if let Some((line, bin)) = board.line(seat.line) {
            line.schedule.truncate(bin.removed());
            bin.tell_pin_thread(line.share.device);
            board.remove_if_over(seat.line);
        }
    }

    /// The program takes the batches on the host.
    pub(crate) fn keep_on_host(&self, seat: &Seat) {
        self.decide(seat, Destination::Host);
    }

    /// The batches that are not open yet go to a device, `depth` ahead. Returns the outbox that they go through.
    pub(crate) fn send_to(&self, seat: &Seat, target: &Target, depth: usize) -> Arc<Outbox<B>> {
        let options = &self.options[seat.share.device];
        let (given, is_dense) = (seat.progress.given(), self.recipe.hints().is_dense);
        let outbox = Outbox::new(target, given, options.any_order, is_dense, None);
        if self.has_lost_threads() {
            return outbox;
        }
        let (failed, end) = {
            let mut board = self.lock();
            let line = board.line(seat.line).map(|(line, _)| line);
            let sends = Arc::clone(&outbox) as Arc<dyn Sends<B>>;
            line.map(|line| {
                let failed = line.set_outbox(seat.segment, sends);
                (failed, line.schedule.units_of(seat.segment))
            })
        }
        .unzip();
        if let Some(batches) = end.flatten().filter(|_| options.is_stream) {
            outbox.ends(batches); // its stream has ended already
        }
        for (batch, unit) in failed.into_iter().flatten() {
            outbox.give_up(batch, unit);
        }
        let destination = options.destination(target.device(), depth);
        #[cfg(feature = "nvjpeg")]
        if destination.decodes() {
            self.recipe.learned().is_decoded_by(&target.device().inner);
        }
        // Then, so that the first units find it.
        self.decide(seat, destination);
        outbox
    }

    /// What to plan for before the program has said what batches are for. `None`: loading must wait for that, because a device could
    /// gather the samples itself, or batches would be cut into parts.
    fn assumed_destination(&self, device: usize) -> Option<Destination> {
        let options = &self.options[device];
        let matters = destination_matters(options, options.machine(), self.recipe.hints());
        // Of several devices, it is not known which one gets them.
        (!matters && self.options.len() == 1).then_some(Destination::Host)
    }

    /// It is known what the batches are for: the epoch is planned, unless it has been. If it is loaded for the host, and turns out to go to
    /// a device, it keeps its plan, and only the number of its slabs changes.
    fn decide(&self, seat: &Seat, destination: Destination) {
        if self.is_planned_for(seat, destination) {
            return;
        }
        let (options, hints) = (&self.options[seat.share.device], self.recipe.hints());
        let (given, is_followed) = (seat.start.given, seat.is_followed);
        // (Where some batches were given out before, units are whole batches.)
        let machine = options.machine().filter(|_| given.has_no_gap());
        let cut = options.cut(seat.start, seat.share);
        let order = options.order(&cut);
        let plan = EpochPlan {
            given,
            ..plan(options, machine, hints, destination, cut, is_followed)
        };
        // First: who asks for a slab must find that there may be some.
        let slabs = plan.slabs(self.is_wide.get() == Some(&true));
        let within = self.slabs_within(plan.kind());
        let account = options.pinning.as_ref();
        let account =
            account.map(|pinning| Account::open(pinning.ring(), plan.kind(), slabs, within));
        let mut board = self.lock();
        let line = board.line(seat.line);
        let pass =
            line.and_then(|(line, _)| line.enter_plan(seat.segment, plan, order, account.clone()));
        board.bin.wake_workers = true;
        match pass {
            Some(pass) => self.begins(&pass, seat.share),
            None => board.bin.close_account(account),
        }
    }

    /// An epoch is planned, and nobody works on it yet.
    #[cfg_attr(not(feature = "nvjpeg"), expect(clippy::unused_self, unused_variables))]
    fn begins(&self, pass: &Pass, portion: Portion) {
        // (Of several devices that share the batches, one stands for all.)
        #[cfg(feature = "nvjpeg")]
        if portion.index == 0 {
            let first = pass.place(pass.units.first);
            self.recipe.learned().share.begins(&first);
        }
    }

    /// Notes what the batches are for. `true`: the epoch has its plan, and nothing is left to decide.
    fn is_planned_for(&self, seat: &Seat, destination: Destination) -> bool {
        let mut board = self.lock();
        let Some((line, bin)) = board.line(seat.line) else {
            return true;
        };
        let Some(slot) = line.schedule.epoch(seat.segment) else {
            return true;
        };
        slot.destination = Some(destination);
        let Some(pass) = &slot.pass else {
            return false;
        };
        if let Some(account) = pass.account.clone().filter(|_| !pass.plan().is_cut()) {
            let (options, depth) = (&self.options[seat.share.device], destination.depth());
            bin.set_slabs(
                account,
                options.slabs_for(
                    options.prefetch,
                    depth,
                    pass.plan().cut.batches(),
                    seat.is_followed,
                ),
            );
            bin.tell_pin_thread(line.share.device);
        }
        true
    }

    /// Plans an epoch that follows another before the consumer comes to it. If the plans join, both are loaded as if they were one.
    pub(crate) fn plan_early(&self, line: u64, segment: u64) {
        let (share, start, destination) = {
            let mut board = self.lock();
            let line = board.line(line).map(|(line, _)| line);
            let Some(line) = line.filter(|line| !line.schedule.is_planned(segment)) else {
                return;
            };
            let schedule = &mut line.schedule;
            let Some(slot) = schedule.epoch(segment) else {
                return;
            };
            // (No epoch but a line's first begins anywhere else than at its beginning.)
            let (start, own) = (Start::of(slot.epoch), slot.destination);
            // A program that took the last epoch on the host will do so again.
            let before = schedule.epoch_before(segment);
            let before = before.and_then(|before| before.destination);
            let destination = own.or(before.filter(|before| *before == Destination::Host));
            (line.share, start, destination)
        };
        let destination = destination.or_else(|| self.assumed_destination(share.device));
        let (options, hints) = (&self.options[share.device], self.recipe.hints());
        let machine = options.machine();
        let plan = destination.map(|destination| {
            let cut = options.cut(start, share);
            let order = options.order(&cut);
            let plan = plan(options, machine, hints, destination, cut, true);
            (plan, order)
        });
        let mut board = self.lock();
        let Some((line, bin)) = board.line(line) else {
            return;
        };
        let Some((plan, order)) = plan else {
            return line.schedule.plan_when_reached(segment);
        };
        let Some(before) = line.schedule.epoch_before(segment) else {
            return; // the consumer has come to it, and plans it
        };
        let account = before.account().map(Account::share);
        match line.enter_plan(segment, plan, order, account.clone()) {
            Some(pass) => self.begins(&pass, share),
            None => return bin.close_account(account),
        }
        if let Some(slot) = line.schedule.epoch(segment) {
            slot.destination = destination;
        }
        bin.wake_workers = true;
    }
}
