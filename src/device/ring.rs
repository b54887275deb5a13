//! The ring: page-locked blocks that are used again and again, under a budget.
//!
//! A ring belongs to its device, so that the loaders on it share the blocks. What it hands out is a [`Slab`]; a slab
//! that is dropped (by its last lease, or by the last transfer that reads it) brings its block home.
//!
//! The same structure serves loaders that do not pin: then its blocks are pageable, and any number may be out.

mod account;
mod refusal;
mod state;

pub(crate) use self::account::Account;
pub(crate) use self::state::Kind;
use self::state::State;
use super::aside::Aside;
use super::helpers::Helpers;
use super::host_memory::{HostBlock, Touch, block_bytes};
use super::slab::Slab;
use crate::driver::Driver;
use crate::error::Result;
use crate::meter::Sum;
use crate::sync::{Arc, Instant, Mutex, Signal, planted};

pub(crate) struct Ring {
    /// Who page-locks; `None` for a ring of pageable blocks.
    driver: Option<Driver>,
    state: Mutex<State>,
    /// Held while a block is made ahead, and while free ones are collected to be given back.
    ahead: Mutex<()>,
    /// Notified whenever there is news for who waits for a slab: one came home, or a copy that holds one was submitted.
    news: Signal,
    helpers: Arc<Helpers>,
    /// Who unlocks what is beyond the budget.
    aside: Aside,
    pub(super) counters: Counters,
}

/// What an epoch may take.
#[derive(Clone, Copy)]
struct Share {
    kind: Kind,
    /// How many slabs of the same size are to be left for earlier batches.
    reserve: usize,
    /// There may be more blocks than the open accounts have shares.
    grow: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) made: Sum,
    pub(super) reused: Sum,
    pub(super) missed: Sum,
    pub(super) unlockable: Sum,
    pub(super) page_locking_ns: Sum,
    pub(super) unstaged: Sum,
}

impl Ring {
    pub(super) fn pinned(
        driver: Driver,
        helpers: Arc<Helpers>,
        aside: Aside,
        budget_bytes: usize,
    ) -> Arc<Ring> {
        Ring::new(Some(driver), helpers, aside, budget_bytes, usize::MAX)
    }

    /// A ring of pageable blocks, which keeps at most `keep` of them while they are not in use. There are never more than
    /// the process may use: a sample that asks for more is an error of its batch, and not the end of the process.
    pub(crate) fn pageable(keep: usize) -> Arc<Ring> {
        Ring::new(
            None,
            Arc::default(),
            Aside::default(),
            crate::system::usable_memory_bytes(),
            keep,
        )
    }

    fn new(
        driver: Option<Driver>,
        helpers: Arc<Helpers>,
        aside: Aside,
        budget_bytes: usize,
        keep: usize,
    ) -> Arc<Ring> {
        Arc::new(Ring {
            driver,
            state: Mutex::new(State {
                shelves: Default::default(),
                pinned_bytes: 0,
                total_bytes: 0,
                budget_bytes,
                ahead_bytes: 0,
                leaving: Vec::new(),
                leaving_bytes: 0,
                is_unlocking: false,
                keep,
            }),
            ahead: Mutex::default(),
            news: Signal::default(),
            helpers,
            aside,
            counters: Counters::default(),
        })
    }

    /// Notified whenever there is news for who waits for a slab.
    pub(crate) fn news(&self) -> &Signal {
        &self.news
    }

    /// Tells rings apart, while they live.
    pub(super) fn name(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Whether a slab of so many bytes does not fit into the budget, whatever comes home.
    pub(crate) fn is_beyond_budget(&self, bytes: usize) -> bool {
        block_bytes(bytes).is_none_or(|size| size > self.state.lock().budget_bytes)
    }

    /// Takes a slab of at least `bytes`, if the budget has room.
    ///
    /// A free block that is large enough is used again; the smallest such, and one that is not page-locked only where
    /// there is no other. Otherwise a new one is made, exactly as large as needed, and a free one that proved too
    /// small makes room for it.
    pub(crate) fn take(self: &Arc<Ring>, bytes: usize) -> Option<Slab> {
        let (block, kind) = self.take_block(bytes, bytes, None)?;
        Some(Slab::new(block, kind, Arc::clone(self), None))
    }

    /// Takes a slab for an epoch, if its account and the budget have room for it and `reserve` more as well. If a new one must
    /// be made, it is of `largest` bytes, if the budget has room for that: what the epoch may need for another batch.
    ///
    /// With `grow`, there may be more blocks than the open accounts have shares: the caller made sure that no copy in
    /// flight will bring one home. (An epoch that follows another waits for its last copies, rather than page-lock
    /// memory that would be too much a moment later.)
    pub(crate) fn take_for(
        self: &Arc<Ring>,
        account: &Arc<Account>,
        bytes: usize,
        largest: usize,
        reserve: usize,
        grow: bool,
    ) -> Option<Slab> {
        if !account.charge(reserve) {
            return None;
        }
        let share = Share {
            kind: account.kind(),
            reserve,
            grow,
        };
        match self.take_block(bytes, largest, Some(share)) {
            Some((block, kind)) => Some(Slab::new(
                block,
                kind,
                Arc::clone(self),
                Some(Arc::clone(account)),
            )),
            None => {
                account.release();
                None
            }
        }
    }

    /// `share`: whose; `None` for a stray, which counts in no share.
    fn take_block(
        &self,
        bytes: usize,
        largest: usize,
        share: Option<Share>,
    ) -> Option<(HostBlock, Kind)> {
        let size = block_bytes(bytes)?;
        let kind = share.map_or(Kind::Whole, |share| share.kind);
        let wished = block_bytes(largest.max(bytes))?;
        let reserved_bytes = share.map_or(Some(0), |share| wished.checked_mul(share.reserve))?;
        let is_stray = share.is_none();
        let mut outgrown = Vec::new();
        let size = {
            let mut state = self.state.lock();
            // A stray (a download of one number, say) leaves large blocks to the batches that they were made for; a batch
            // takes any, for the last one of an epoch is small.
            let room = |state: &State| state.total_bytes.saturating_add(size) <= state.budget_bytes;
            let most = match is_stray && room(&state) {
                true => size.saturating_mul(2).max(1 << 20),
                false => usize::MAX,
            };
            // Earlier batches find room in the budget as well, also where the block that is taken is larger than need be.
            let room_bytes = state.room_bytes();
            if reserved_bytes > 0 && !planted("nothing is reserved in the budget") {
                let free = state.free().map(HostBlock::capacity);
                let taken = free.filter(|free| *free >= size).min().unwrap_or(size);
                if taken.saturating_add(reserved_bytes) > room_bytes {
                    return None;
                }
            }
            let shelves: &[Kind] = match share.map(|share| share.kind) {
                Some(Kind::Whole) => &[Kind::Whole],
                Some(Kind::Part) if state.lends() => &[Kind::Part, Kind::Whole],
                Some(Kind::Part) => &[Kind::Part],
                None => &[Kind::Whole, Kind::Part],
            };
            for &kind in shelves {
                let shelf = &mut state.shelves[kind as usize];
                if let Some(block) = shelf.take_best(size, most) {
                    self.counters.reused.add(1);
                    shelf.strays += usize::from(is_stray);
                    return Some((block, kind));
                }
            }
            // Every free block is too small. What is being made ahead is better waited for than done without, or made a second
            // time.
            if state.ahead_bytes > 0
                && !planted("what is made ahead is made again")
                && (size > room_bytes || (size..=most).contains(&state.ahead_bytes))
            {
                drop(state);
                drop(self.ahead.lock());
                return self.take_block(bytes, largest, share);
            }
            // What would not fit if all free blocks went costs none.
            let size = [wished, size]
                .into_iter()
                .find(|size| size.saturating_add(reserved_bytes) <= room_bytes)?;
            let room = |state: &State| state.total_bytes.saturating_add(size) <= state.budget_bytes;
            // What is on its way out makes room; and nobody has more than the budget meanwhile.
            if state.leaving_bytes > 0 && !room(&state) {
                drop(state);
                return match self.aside.wait() {
                    true => self.take_block(bytes, largest, share),
                    false => None,
                };
            }
            // One goes for a batch's new one, so that a ring whose batches grow does not keep all the sizes that there ever
            // were; more go while the budget needs it.
            let shelf = &state.shelves[kind as usize];
            if share.is_some_and(|share| !share.grow)
                && !planted("more blocks than shares")
                && shelf.free.is_empty()
                && state.blocks_for(kind) >= shelf.shares.max(1)
            {
                return None;
            }
            if !is_stray {
                outgrown.extend(state.evict(&[kind]));
            }
            while !room(&state) {
                let Some(block) = state.evict(&[kind, Kind::Whole, Kind::Part]) else {
                    break;
                };
                outgrown.push(block);
            }
            // Reserved: the block is made without the lock.
            state.total_bytes += size;
            let shelf = &mut state.shelves[kind as usize];
            shelf.blocks += 1;
            shelf.strays += usize::from(is_stray);
            size
        };
        drop(outgrown);
        let block = self.make(size);
        let mut state = self.state.lock();
        match &block {
            Some(block) if block.is_pinned() => state.pinned_bytes += size,
            Some(_) => {}
            None => {
                state.total_bytes -= size;
                let shelf = &mut state.shelves[kind as usize];
                shelf.blocks -= 1;
                shelf.strays -= usize::from(is_stray);
            }
        }
        Some((block?, kind))
    }

    /// `None` where the system does not have as much memory.
    fn make(&self, size: usize) -> Option<HostBlock> {
        let start = Instant::now();
        let touch: Touch<'_> = &|pointer, bytes| self.helpers.zero(pointer, bytes);
        self.counters.made.add(1);
        let Some(driver) = &self.driver else {
            return HostBlock::pageable(size, touch);
        };
        let block = HostBlock::pinned(driver, size, touch).map(Some).unwrap_or_else(|errors| {
            let reasons: Vec<String> = errors.iter().map(ToString::to_string).collect();
            if self.counters.unlockable.get() == 0 {
                log::warn!(
                    "{}: {size} bytes cannot be page-locked ({}): batches stay in pageable memory and copies do not \
                     overlap. Free memory, raise the limit of locked memory, or lower prefetch or batch_size",
                    driver.name(),
                    reasons.join("; ")
                );
            }
            self.counters.unlockable.add(1);
            HostBlock::pageable(size, touch)
        });
        self.counters.page_locking_ns.add_since(start);
        block
    }

    /// Makes one more slab of `bytes`, before somebody waits for it; `false` if there are as many as the open accounts have
    /// shares, or it cannot be had.
    pub(crate) fn make_ahead(&self, kind: Kind, bytes: usize) -> bool {
        let Some(size) = block_bytes(bytes).filter(|_| self.counters.unlockable.get() == 0) else {
            return false;
        };
        let _making = self.ahead.lock();
        {
            let mut state = self.state.lock();
            let shelf = &state.shelves[kind as usize];
            let enough = state.blocks_for(kind) >= shelf.shares;
            if enough || state.total_bytes.saturating_add(size) > state.budget_bytes {
                return false;
            }
            // Reserved: the block is made without the state's lock.
            state.total_bytes += size;
            state.shelves[kind as usize].blocks += 1;
            state.ahead_bytes = size;
        }
        let block = self.make(size);
        let mut state = self.state.lock();
        state.ahead_bytes = 0;
        match block {
            Some(block) if block.is_pinned() => {
                state.pinned_bytes += size;
                state.shelves[kind as usize].free.push(block);
                drop(state);
                self.news.notify_interested();
                true
            }
            block => {
                state.total_bytes -= size;
                state.shelves[kind as usize].blocks -= 1;
                drop(state);
                drop(block);
                false
            }
        }
    }

    /// Brings a block home. The caller holds it alone: nothing reads or writes it any more. Who waits is the caller's to tell.
    ///
    /// What is beyond the budget is unlocked aside: that waits for kernels, and whoever looks after finished copies does not.
    pub(super) fn put(self: &Arc<Ring>, block: HostBlock, kind: Kind, stray: bool) {
        if let Some(driver) = &self.driver {
            // SAFETY: the block is the caller's alone (*no access while in flight*).
            unsafe { driver.poison(block.base().as_ptr() as u64, block.capacity()) };
        }
        let mut surplus = None;
        let leaves = {
            let mut state = self.state.lock();
            let within = state.total_bytes - state.leaving_bytes <= state.budget_bytes;
            let keep = state.keep;
            let shelf = &mut state.shelves[kind as usize];
            shelf.strays -= usize::from(stray);
            let keeps = shelf.free.len() < keep && within;
            let leaves = !keeps && block.is_pinned();
            if keeps {
                shelf.free.push(block);
            } else if leaves {
                // Under the lock: who finds something leaving can wait for it.
                if state.leave(block, kind) {
                    let ring = Arc::clone(self);
                    self.aside.enter(move || ring.unlock_leaving());
                }
            } else {
                state.forget(&block, kind);
                surplus = Some(block);
            }
            leaves
        };
        drop(surplus);
        if leaves {
            // If there is no thread for it, who needs the room unlocks it: the caller may hold a lock.
            self.aside.start();
        }
    }

    /// Unlocks what is on its way out.
    fn unlock_leaving(&self) {
        loop {
            let Some(block) = self.state.lock().next_leaving() else {
                return;
            };
            let bytes = block.capacity();
            drop(block);
            self.state.lock().left(bytes);
            self.news.notify_interested();
        }
    }

    /// The device's threads for large copies.
    pub(crate) fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    /// Counts a slab that was wanted page-locked and could not be.
    pub(crate) fn count_missed(&self) {
        self.counters.missed.add(1);
    }

    /// Frees all blocks that are not in use; returns their bytes. One that is being made for an epoch that has ended
    /// meanwhile is none that is missed: it is waited for.
    pub(super) fn release(&self) -> usize {
        let idle = {
            let _making = self.ahead.lock();
            let mut state = self.state.lock();
            let kinds = [Kind::Whole, Kind::Part];
            let idle: Vec<_> = std::iter::from_fn(|| state.evict(&kinds)).collect();
            idle
        };
        let leaving_bytes = self.state.lock().leaving_bytes;
        self.aside.wait();
        let idle_bytes: usize = idle.iter().map(HostBlock::capacity).sum();
        idle_bytes + leaving_bytes
    }

    pub(super) fn set_budget_bytes(&self, bytes: usize) {
        self.state.lock().budget_bytes = bytes;
        self.news.notify();
    }

    /// (page-locked bytes alive, bytes of them that are idle, budget)
    pub(super) fn bytes(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        let free = state.free().filter(|block| block.is_pinned());
        let free_bytes: usize = free.map(HostBlock::capacity).sum();
        let idle_bytes = free_bytes + state.leaving_bytes;
        (state.pinned_bytes, idle_bytes, state.budget_bytes)
    }
}

/// Takes a slab that is page-locked, or says why there is none.
pub(super) fn take_pinned(ring: &Arc<Ring>, bytes: usize) -> Result<Slab> {
    match ring.take(bytes) {
        Some(slab) if slab.is_page_locked() => Ok(slab),
        Some(_) => Err(ring.unlockable(bytes)),
        None => Err(ring.refusal(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made before somebody waits for it is in nobody's way.
    #[test]
    fn a_slab_that_is_being_made_ahead_is_waited_for() {
        const BYTES: usize = 48 << 20;
        let driver = Driver::Cpu(crate::driver::cpu::Cpu::new(None));
        let ring = Ring::pinned(driver, Arc::default(), Aside::default(), BYTES);
        let account = Account::open(&ring, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(ring.make_ahead(Kind::Whole, BYTES)));
            while ring.state.lock().ahead_bytes == 0 && ring.state.lock().free().next().is_none() {}
            assert!(ring.take(BYTES / 2).is_some());
            assert!(
                ring.take_for(&account, BYTES, BYTES, 0, true)
                    .is_some_and(|slab| slab.is_page_locked())
            );
        });
        assert_eq!(ring.counters.made.get(), 1);
    }

    /// Whoever finds memory on its way out finds somebody at it, to wait for; so it is not looked for again and again.
    #[test]
    fn what_is_leaving_can_be_waited_for() {
        const BYTES: usize = 1 << 12;
        let driver = Driver::Cpu(crate::driver::cpu::Cpu::new(None));
        let aside = Aside::default();
        let ring = Ring::pinned(driver, Arc::default(), aside.clone(), BYTES);
        let over = crate::sync::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    ring.set_budget_bytes(BYTES);
                    let slab = ring.take(BYTES);
                    ring.set_budget_bytes(0);
                    drop(slab);
                }
                over.store(true, crate::sync::Ordering::Relaxed);
            });
            while !over.load(crate::sync::Ordering::Relaxed) {
                let state = ring.state.lock();
                assert!(state.leaving_bytes == 0 || !aside.is_idle());
            }
        });
    }
}
