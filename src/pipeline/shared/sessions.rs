//! The sessions of a loader, and which of them may have something to do.
//!
//! A program may hold thousands of epochs, and a thread that claims something must not look at all of them. So a session that was found to
//! have nothing to do is *quiet*: it is not looked at until it is accessed again ([`Sessions::get`]), because what it has to do follows
//! from what is done with it, under the shared lock. Two things do not:
//!
//! - bytes in flight that other sessions gave back. A session that waits for them is never quiet, because its consumer may be blocked on
//!   them;
//! - slabs that come home to the quota of a session whose tasks share them. What it may open beyond its window depends on them. It may be
//!   quiet all the same: its tasks within the window are opened without them (`schedule/runs.rs`), and its consumer accesses it at its next
//!   call. No thread is woken when a slab comes home, so a session that is not quiet would find out no sooner.
//!
//! A session that is alone, as most are, is in no queue: it is looked at each time. Every call here is made under the shared lock, and where
//! batches take microseconds, workers wait for that lock most of all.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use super::session::{Job, Session};
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::{Claimant, TaskId};
use crate::pipeline::traits::Factory;
use crate::sync::{Arc, planted};

/// All sessions of a loader.
pub(crate) struct Sessions<B> {
    entries: Entries<B>,
    added: u64,
    /// Counts claims, so that sessions take turns.
    turn: u64,
    /// Those that were accessed since the queues were put in order.
    touched: Vec<u64>,
    /// Those that may have something to do in the epoch that their consumer is at.
    near: BTreeSet<Turn>,
    /// Those that may have something to do beyond it, and have nothing to do in it.
    far: BTreeSet<Turn>,
    /// Those whose consumer is blocked.
    blocked: BTreeSet<u64>,
    /// Those that may wait for a slab, by their device.
    asking: BTreeSet<(usize, u64)>,
    /// How many sessions each device has.
    of_device: Vec<usize>,
    /// How often a session was looked at.
    #[cfg(test)]
    pub(crate) looks: u64,
}

/// A session's place in a queue. Sessions whose consumer is blocked come first (`false`), and among equals the one that was served longest
/// ago: otherwise a session that always has work could starve another of workers and slabs.
type Turn = (bool, u64, u64);

struct Entry<B> {
    session: Session<B>,
    is_touched: bool,
    is_asking: bool,
    /// The turn at which one of its jobs was claimed last.
    last_turn: u64,
    /// In which queue it is; `None`: it is quiet.
    place: Option<(Queue, Turn)>,
}

impl<B> Entry<B> {
    /// The session was accessed: it may have something to do.
    fn touch(&mut self, touched: &mut Vec<u64>, asking: &mut BTreeSet<(usize, u64)>) {
        let key = self.session.key;
        let is_woken = self.place.is_some()
            || !planted("a quiet session stays quiet when a worker has had it");
        if !self.is_touched && is_woken {
            self.is_touched = true;
            touched.push(key);
        }
        if !self.is_asking {
            self.is_asking = true;
            asking.insert((self.session.share.device, key));
        }
    }
}

/// Sessions by their keys, which ascend. (There are mostly one or two, and they are looked up at each access: so it is no map.)
struct Entries<B>(Vec<(u64, Box<Entry<B>>)>);

impl<B> Entries<B> {
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn index_of(&self, key: u64) -> Option<usize> {
        match &*self.0 {
            [(alone, _)] => (*alone == key).then_some(0),
            entries => entries.binary_search_by_key(&key, |(key, _)| *key).ok(),
        }
    }

    fn get(&self, key: u64) -> Option<&Entry<B>> {
        let index = self.index_of(key)?;
        Some(&self.0[index].1)
    }

    #[inline]
    fn get_mut(&mut self, key: u64) -> Option<&mut Entry<B>> {
        let index = self.index_of(key)?;
        Some(&mut self.0[index].1)
    }

    /// Adds one with a key above all others.
    fn push(&mut self, entry: Entry<B>) {
        self.0.push((entry.session.key, Box::new(entry)));
    }

    fn remove(&mut self, key: u64) -> Option<Box<Entry<B>>> {
        let index = self.index_of(key)?;
        Some(self.0.remove(index).1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Near,
    Far,
}

impl<B: 'static> Sessions<B> {
    pub(crate) fn new() -> Sessions<B> {
        Sessions {
            entries: Entries(Vec::new()),
            added: 0,
            turn: 0,
            touched: Vec::new(),
            near: BTreeSet::new(),
            far: BTreeSet::new(),
            blocked: BTreeSet::new(),
            asking: BTreeSet::new(),
            of_device: Vec::new(),
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Adds the session that `make` makes for a new key, which it returns.
    pub(crate) fn add(&mut self, make: impl FnOnce(u64) -> Session<B>) -> u64 {
        self.added += 1;
        let key = self.added;
        let session = make(key);
        let device = session.share.device;
        if self.of_device.len() <= device {
            self.of_device.resize(device + 1, 0);
        }
        self.of_device[device] += 1;
        // A session that was alone was in no queue, or in one where it was before that.
        if let [(_, alone)] = &mut *self.entries.0 {
            alone.touch(&mut self.touched, &mut self.asking);
        }
        let entry = Entry {
            session,
            is_touched: true,
            is_asking: true,
            last_turn: 0,
            place: None,
        };
        self.entries.push(entry);
        self.touched.push(key);
        self.asking.insert((device, key));
        key
    }

    pub(crate) fn remove(&mut self, key: u64) {
        self.put(key, None);
        let Some(entry) = self.entries.remove(key) else {
            return;
        };
        let device = entry.session.share.device;
        self.of_device[device] -= 1;
        self.blocked.remove(&key);
        self.asking.remove(&(device, key));
        if entry.is_touched {
            self.touched.retain(|touched| *touched != key);
        }
    }

    /// Removes all sessions.
    pub(crate) fn clear(&mut self) {
        *self = Sessions {
            added: self.added,
            turn: self.turn,
            ..Sessions::new()
        };
    }

    /// A session, for a caller that may change it.
    #[inline]
    pub(crate) fn get(&mut self, key: u64) -> Option<&mut Session<B>> {
        let is_alone = self.entries.len() == 1;
        let entry = self.entries.get_mut(key)?;
        if !(is_alone || entry.is_touched && entry.is_asking) {
            entry.touch(&mut self.touched, &mut self.asking);
        }
        Some(&mut entry.session)
    }

    /// The session, if it is alone.
    fn alone(&mut self) -> Option<&mut Entry<B>> {
        match &mut *self.entries.0 {
            [(_, alone)] => Some(alone),
            _ => None,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session<B>> {
        self.entries.0.iter().map(|(_, entry)| &entry.session)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session<B>> {
        self.entries
            .0
            .iter_mut()
            .map(|(_, entry)| &mut entry.session)
    }

    /// The session, if there is only one.
    pub(crate) fn only(&self) -> Option<&Session<B>> {
        match &*self.entries.0 {
            [(_, alone)] => Some(&alone.session),
            _ => None,
        }
    }

    /// For how many devices there are sessions.
    pub(crate) fn devices(&self) -> usize {
        self.of_device.iter().filter(|count| **count > 0).count()
    }

    /// The sessions whose consumer is blocked.
    pub(crate) fn blocked(&mut self) -> impl Iterator<Item = &Session<B>> {
        let is_alone = self.entries.len() == 1;
        if !is_alone {
            self.settle();
        }
        let entries = &self.entries;
        let several = self.blocked.iter().filter(move |_| !is_alone);
        let several = several.filter_map(|key| Some(&entries.get(*key)?.session));
        let alone = entries.0.iter().take(usize::from(is_alone));
        let alone = alone.map(|(_, entry)| &entry.session);
        alone
            .filter(|session| session.schedule.is_blocked())
            .chain(several)
    }

    /// Claims something of the first session that has something to do. What lies beyond the epoch that a consumer is at comes last.
    pub(crate) fn claim(&mut self, factory: &dyn Factory<B>, claimant: Claimant) -> Option<Job<B>> {
        // Those that are still near after the first look have work for other claimants than this one, or wait for bytes.
        let looks = [
            (Queue::Near, false),
            (Queue::Far, true),
            (Queue::Near, true),
        ];
        let claim = |session: &mut Session<B>, claimant| session.claim(factory, claimant);
        let (job, queue, key) = self.find(&looks, claimant, claim)?;
        if let Some(queue) = queue {
            self.turn += 1;
            if let Some(entry) = self.entries.get_mut(key) {
                entry.last_turn = self.turn;
            }
            self.put(key, Some(queue));
        }
        Some(job)
    }

    /// Whether [`claim`](Sessions::claim) would return something.
    pub(crate) fn has_claim(&mut self, claimant: Claimant) -> bool {
        let looks = [(Queue::Near, true), (Queue::Far, true)];
        let look = |session: &mut Session<B>, claimant| session.has_claim(claimant).then_some(());
        self.find(&looks, claimant, look).is_some()
    }

    /// The first task of each of the device's sessions that waits for a slab, in the sessions' turn.
    pub(crate) fn waiting(&mut self, device: usize) -> Vec<(Arc<EpochContext>, TaskId)> {
        if let Some(alone) = self.alone() {
            let is_its = alone.session.share.device == device;
            let first = is_its.then(|| alone.session.first_waiting()).flatten();
            return first.into_iter().collect();
        }
        let asking = self.asking.range((device, 0)..=(device, u64::MAX));
        let asking: Vec<u64> = asking.map(|(_, key)| *key).collect();
        let mut waiting = Vec::new();
        for key in asking {
            self.count_look();
            let Some(entry) = self.entries.get_mut(key) else {
                continue;
            };
            match entry.session.first_waiting() {
                Some(first) => {
                    let is_blocked = entry.session.schedule.is_blocked();
                    waiting.push(((!is_blocked, entry.last_turn, key), first));
                }
                None => {
                    entry.is_asking = false;
                    self.asking.remove(&(device, key));
                }
            }
        }
        waiting.sort_unstable_by_key(|(turn, _)| *turn);
        waiting.into_iter().map(|(_, first)| first).collect()
    }
}

impl<B: 'static> Sessions<B> {
    /// Asks the sessions of these queues in turn, within the epoch that their consumer is at or also beyond it, until one has an answer.
    /// Those that have nothing for any claimant go to where they are looked at later, or not at all.
    fn find<T>(
        &mut self,
        looks: &[(Queue, bool)],
        claimant: Claimant,
        mut ask: impl FnMut(&mut Session<B>, Claimant) -> Option<T>,
    ) -> Option<(T, Option<Queue>, u64)> {
        if let Some(alone) = self.alone() {
            // (All of its work is near.)
            let near = looks.iter().filter(|(queue, _)| *queue == Queue::Near);
            let mut claimants = near.map(|&(_, beyond)| Claimant { beyond, ..claimant });
            let found = claimants.find_map(|claimant| ask(&mut alone.session, claimant))?;
            return Some((found, None, alone.session.key));
        }
        self.settle();
        for &(queue, beyond) in looks {
            let claimant = Claimant { beyond, ..claimant };
            let mut after = None;
            while let Some(turn) = self.next(queue, after) {
                self.count_look();
                let (_, _, key) = turn;
                let Some(entry) = self.entries.get_mut(key) else {
                    unreachable!("a session that is removed leaves its queue");
                };
                if let Some(found) = ask(&mut entry.session, claimant) {
                    return Some((found, Some(queue), key));
                }
                if !entry.session.has_nothing_for_any(claimant) {
                    after = Some(turn);
                    continue;
                }
                self.put(key, (!beyond).then_some(Queue::Far));
            }
        }
        None
    }

    /// The session of a queue that comes after this one.
    fn next(&self, queue: Queue, after: Option<Turn>) -> Option<Turn> {
        let queue = match queue {
            Queue::Near => &self.near,
            Queue::Far => &self.far,
        };
        match after {
            None => queue.first().copied(),
            Some(after) => queue.range((Excluded(after), Unbounded)).next().copied(),
        }
    }

    /// Puts the sessions that were accessed into their queues.
    fn settle(&mut self) {
        while let Some(key) = self.touched.pop() {
            let Some(entry) = self.entries.get_mut(key) else {
                continue;
            };
            entry.is_touched = false;
            let is_blocked = entry.session.schedule.is_blocked();
            match is_blocked {
                true => _ = self.blocked.insert(key),
                false => _ = self.blocked.remove(&key),
            }
            let turn = (!is_blocked, entry.last_turn, key);
            let stays = match entry.place {
                Some((Queue::Near, placed)) => placed == turn,
                _ => false,
            };
            if !stays {
                self.put(key, Some(Queue::Near));
            }
        }
    }

    /// Puts a session into a queue, in its turn, or into none.
    fn put(&mut self, key: u64, queue: Option<Queue>) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let turn = (!entry.session.schedule.is_blocked(), entry.last_turn, key);
        let place = queue.map(|queue| (queue, turn));
        match std::mem::replace(&mut entry.place, place) {
            Some((Queue::Near, turn)) => _ = self.near.remove(&turn),
            Some((Queue::Far, turn)) => _ = self.far.remove(&turn),
            None => {}
        }
        match queue {
            Some(Queue::Near) => _ = self.near.insert(turn),
            Some(Queue::Far) => _ = self.far.insert(turn),
            None => {}
        }
    }

    #[cfg_attr(not(test), expect(clippy::unused_self))]
    fn count_look(&mut self) {
        #[cfg(test)]
        {
            self.looks += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::device::Device;
    use crate::loader::DataLoader;

    /// How often sessions are looked at, for each batch that thousands of epochs give in turn.
    fn looks_per_batch(epochs: u64, workers: usize) -> u64 {
        let device = Device::cpu();
        let loader = DataLoader::builder(vec![[1.0f32; 16]; 400])
            .batch_size(20)
            .num_workers(workers)
            .pin_memory(&device)
            .build()
            .unwrap();
        let mut epochs: Vec<_> = (0..epochs).map(|number| loader.epoch(number)).collect();
        for _ in 0..4 {
            for epoch in &mut epochs {
                epoch.next().unwrap().unwrap();
            }
        }
        let looks = loader.pipeline().lock().sessions.looks;
        looks / (4 * epochs.len() as u64)
    }

    /// A claim takes as long among a thousand sessions as among a few: it looks at those that have something to do.
    #[test]
    fn a_claim_looks_at_few_sessions() {
        for workers in [1, 3] {
            let few = looks_per_batch(50, workers);
            let many = looks_per_batch(1000, workers);
            assert!(few < 60 && many < 60, "{few} and {many} looks for a batch");
        }
    }
}
