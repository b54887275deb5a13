//! The meters of all epochs of a loader, and the sum of those that are over.

use super::{Meter, Recorder};
use crate::sync::{Arc, Mutex, planted};

#[derive(Default)]
pub(crate) struct Meters {
    pub(crate) recorder: Arc<Recorder>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those that may still be counted with.
    live: Vec<Arc<Meter>>,
    /// When there are so many, it is looked for those that are over. (Not for each: a program may hold thousands of epochs.)
    look_at: usize,
    /// The sum of the others.
    over: Meter,
}

impl Meters {
    /// The meter of another epoch, of this number.
    pub(crate) fn add(&self, epoch: u64) -> Arc<Meter> {
        let meter = Arc::new(Meter::of(epoch, &self.recorder));
        let mut state = self.state.lock();
        if state.live.len() >= state.look_at {
            state.tidy();
            state.look_at = 2 * state.live.len();
        }
        state.live.push(Arc::clone(&meter));
        meter
    }

    /// The meter of an epoch that is no part of the run.
    pub(crate) fn apart(&self, epoch: u64) -> Arc<Meter> {
        Arc::new(Meter::of(epoch, &self.recorder))
    }

    /// Makes all devices add up what has completed.
    pub(crate) fn settle(&self) {
        let live = self.state.lock().live.clone();
        // Without the lock: what finished copies held may be the program's to drop.
        live.iter().for_each(|meter| meter.settle());
    }

    /// What all of them have counted, as far as copies and kernels are over.
    pub(crate) fn total(&self) -> Meter {
        self.settle();
        let total = Meter::default();
        let mut state = self.state.lock();
        state.tidy();
        total.absorb(&state.over);
        state.live.iter().for_each(|meter| total.absorb(meter));
        total
    }
}

impl State {
    /// Adds up the meters that have no other holder. (All that count hold one: an epoch, its tasks, their slabs, copies in flight.)
    fn tidy(&mut self) {
        let over = &self.over;
        self.live.retain_mut(|meter| match Arc::get_mut(meter) {
            Some(meter) => {
                over.absorb(meter);
                false
            }
            None if planted("a meter is added up while others count with it") => {
                over.absorb(meter);
                false
            }
            None => true,
        });
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_meter_is_counted_once() {
        let meters = Meters::default();
        let [first, second] = [meters.add(0), meters.add(1)];
        first.batches.add(3);
        second.batches.add(4);
        assert_eq!(meters.total().batches.get(), 7);
        drop(first);
        assert_eq!(meters.total().batches.get(), 7);
        second.batches.add(1); // it is still counting
        assert_eq!(meters.total().batches.get(), 8);
        drop(second);
        let third = meters.add(2);
        third.over_budget_bytes.see(5);
        assert!((0..3).all(|_| meters.total().batches.get() == 8));
        assert_eq!(meters.total().over_budget_bytes.get(), 5);
        assert_eq!(meters.state.lock().live.len(), 1);
    }

    #[test]
    fn no_more_bad_samples_are_listed_of_all_than_of_one() {
        let meters = Meters::default();
        for epoch in 0..3 {
            let meter = meters.add(epoch);
            (0..60).for_each(|sample| _ = meter.note_bad(&format!("{epoch} {sample}")));
        }
        let bad = meters.total().bad_samples();
        assert_eq!(bad.len(), super::super::MOST_BAD_SAMPLES);
        assert_eq!((&*bad[0], &*bad[60], &*bad[99]), ("0 0", "1 0", "1 39"));
    }
}
