//! Delivery: units become ready or are sent ahead, and the consumer takes them in order.

use super::entry::{Stage, UnitEntry};
use super::{Schedule, Unit};
use crate::tuning::RUN_NS;

impl<E, U> Schedule<E, U> {
    /// The unit, or its error, can be delivered.
    pub(crate) fn ready(&mut self, unit: Unit) {
        self.entry(unit).stage = Stage::Ready;
    }

    /// The unit was sent to its device. It can be delivered, and is no longer ahead of the consumer.
    pub(crate) fn sent(&mut self, unit: Unit) {
        let entry = self.entry(unit);
        entry.stage = Stage::Ready;
        self.open_sent += usize::from(!std::mem::replace(&mut entry.is_sent, true));
    }

    /// Somebody sends the unit, which was ready. It cannot be delivered until [`ready`](Schedule::ready) or [`sent`](Schedule::sent).
    pub(crate) fn sending(&mut self, unit: Unit) {
        self.entry(unit).stage = Stage::Sending;
    }

    /// Whether the unit, or its error, can be delivered.
    pub(crate) fn is_ready(&self, unit: Unit) -> bool {
        let index = (unit.0 - self.first.0) as usize;
        self.open[index].stage == Stage::Ready
    }

    /// The open units that are ready, in order.
    pub(crate) fn ready_units(&self) -> impl Iterator<Item = (Unit, &U)> {
        let units = (self.first.0..).map(Unit).zip(&self.open);
        let ready = units.filter(|(_, entry)| entry.stage == Stage::Ready);
        ready.map(|(unit, entry)| (unit, &entry.payload))
    }

    /// How many whole batches the consumer could take without waiting, those of later epochs and those that were sent with them.
    pub(crate) fn ready_batches(&self) -> u64 {
        let is_ready = |entry: &&UnitEntry<U>| entry.stage == Stage::Ready;
        let units = self.open.iter().take_while(is_ready).count() as u64;
        let plan = self.segment_of(self.first).map(|(_, units)| &units.plan);
        units / plan.map_or(1, |plan| plan.cut.parts_per_batch()).max(1)
    }

    /// How many units the consumer may take now: those of its epoch that are ready, [`at_once`](Schedule::at_once) at most. The first is
    /// one of them; others that were sent do not count, for they are not ahead.
    pub(crate) fn deliverable(&self) -> usize {
        let own = (self.consumers_end().0 - self.first.0) as usize;
        let mut counted = 0;
        let may_take = |(index, entry): &(usize, &UnitEntry<U>)| {
            let counts = *index == 0 || !entry.is_sent;
            counted += usize::from(counts);
            entry.stage == Stage::Ready && (!counts || counted == 1 || counted <= self.at_once())
        };
        let open = self.open.iter().take(own).enumerate();
        open.take_while(may_take).count()
    }

    /// How many units the consumer may take together. They count as ahead until it asks for more, so taking several leaves fewer ahead
    /// than `prefetch` promises. That pays off only if making a unit takes less time than waking a worker; then the consumer may take
    /// half of the window, and leaves the other half to keep workers busy.
    pub(super) fn at_once(&self) -> usize {
        let Some((_, units)) = self.segment_of(self.first) else {
            return 1;
        };
        match self.unit_ns(&units.plan) {
            Some(ns) if ns <= RUN_NS / 2 => (self.window(&units.plan) / 2).max(1),
            _ => 1,
        }
    }

    /// The consumer takes the next units, which are ready, and comes to the first of them.
    pub(crate) fn deliver(&mut self, count: usize) -> impl Iterator<Item = U> {
        debug_assert!((1..=self.deliverable()).contains(&count));
        let sent = self.open.iter().take(count).filter(|entry| entry.is_sent);
        let sent = sent.count();
        let first_was_sent = self.open[0].is_sent;
        self.open_sent -= sent;
        self.first.0 += count as u64;
        self.taken = count - 1 - (sent - usize::from(first_was_sent));
        self.is_blocked = false;
        self.open.drain(..count).map(|entry| entry.payload)
    }

    /// The consumer has come to all units that it took.
    pub(crate) fn used_up(&mut self) {
        self.taken = 0;
    }

    /// The consumer blocks on the first unit.
    pub(crate) fn block(&mut self) {
        self.is_blocked = true;
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Decides once whether more units may be open than the cache holds: yes, if a batch came and loading took much longer than
    /// copying (more than a nanosecond per byte); no, if that is not the case by the end of the first epoch.
    pub(crate) fn find_out_if_wide(&mut self) -> Option<bool> {
        let units = self.segments.front()?.units.as_ref()?;
        if self.is_wide.is_some() || units.plan.resident.is_none() {
            return None;
        }
        let came = self.first.0 >= units.first.0 + units.plan.cut.parts_per_batch();
        if came && units.plan.streamed_bytes < self.sample_ns {
            self.is_wide = Some(true);
        } else if self.remaining() == Some(0) {
            self.is_wide = Some(false);
        }
        self.is_wide
    }

    pub(super) fn is_wide(&self) -> bool {
        self.is_wide == Some(true)
    }

    /// What is said of the unit that the consumer gets next.
    pub(crate) fn state_of_first(&self) -> &'static str {
        let Some(entry) = self.open.front() else {
            return "was not begun";
        };
        match entry.stage {
            Stage::Loading if entry.waits_for_slab() => "waits for page-locked memory",
            Stage::Pulling => "waits for items of the stream",
            Stage::Moving => "waits for page-locked memory to be moved to",
            Stage::Loading | Stage::Solo => "is being loaded",
            Stage::LayingOut => "is being laid out",
            Stage::Finishing => "is being collated",
            Stage::Sending => "is being sent to the device",
            Stage::Ready => "is ready",
        }
    }

    /// The unit that the consumer gets next.
    pub(crate) fn first(&self) -> Unit {
        self.first
    }
}
