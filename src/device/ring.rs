//! The ring: page-locked blocks that are used again and again, under a budget.
//!
//! A ring belongs to its device, so the loaders on that device share the blocks. It hands them out as [`Slab`]s; dropping
//! a slab (its last lease, or the last transfer that reads it) brings its block home.
//!
//! The same structure serves loaders that do not pin: its blocks are pageable then, and any number of them may be out.

mod idle;
mod quota;
mod refusal;
mod slab;
mod state;

use self::idle::Idle;
pub(crate) use self::quota::{Reservation, SlabQuota};
pub(crate) use self::slab::Slab;
pub(crate) use self::state::Kind;
use self::state::{BlockAnswer, BlockRequest, RingState};
use super::helpers::Helpers;
use super::host_memory::{HostBlock, Touch, block_bytes};
use crate::driver::Driver;
use crate::error::Result;
use crate::meter::Sum;
use crate::sync::log;
use crate::sync::{Arc, Instant, Mutex, OnceLock, Signal};
use crate::system::numa;

pub(crate) struct Ring {
    /// Page-locks the blocks; `None` for a ring of pageable blocks.
    driver: Option<Driver>,
    state: Arc<Mutex<RingState>>,
    /// Held while a block is made ahead, and while idle ones are collected to be given back.
    ahead: Mutex<()>,
    /// Held from the eviction of page-locked blocks until they are unlocked: a thread that needs their room waits for it
    /// here. Lock order: `ahead`, `unlocking`, `state`.
    unlocking: Mutex<()>,
    /// Notified when there is news for threads that wait for a slab: one came home, or a copy that holds one was
    /// submitted.
    news: Arc<Signal>,
    helpers: Arc<Helpers>,
    /// Where new blocks lie.
    pub(crate) placing: Placing,
    pub(super) counters: Counters,
}

/// The node that new blocks are to lie on, if the program set one.
#[derive(Debug, Default)]
pub(crate) struct Placing {
    node: OnceLock<usize>,
    /// Why some do not.
    pub(crate) problem: OnceLock<String>,
}

impl Placing {
    pub(crate) fn node(&self) -> Option<usize> {
        self.node.get().copied()
    }

    /// Asks for memory of the node. If the system refuses, the log says so once.
    fn place(&self, pointer: *mut u8, bytes: usize) {
        let Some(node) = self.node() else { return };
        if let Err(error) = numa::prefer_node(pointer, bytes, node) {
            let text = format!("page-locked memory cannot be taken from node {node}: {error}");
            let first = self.problem.set(text.clone()).is_ok();
            if first {
                log::warn!("{text}");
            }
        }
    }
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
    pub(super) fn pinned(driver: Driver, helpers: Arc<Helpers>, budget_bytes: usize) -> Arc<Ring> {
        Ring::new(Some(driver), helpers, budget_bytes, usize::MAX)
    }

    /// A ring of pageable blocks, which keeps at most `keep` of them idle. It never has more than the process may use: a
    /// sample that asks for more is an error of its batch, and not the end of the process.
    pub(crate) fn pageable(keep: usize) -> Arc<Ring> {
        Ring::new(
            None,
            Arc::default(),
            crate::system::usable_memory_bytes(),
            keep,
        )
    }

    fn new(
        driver: Option<Driver>,
        helpers: Arc<Helpers>,
        budget_bytes: usize,
        keep: usize,
    ) -> Arc<Ring> {
        Arc::new(Ring {
            driver,
            state: Arc::new(Mutex::new(RingState {
                shelves: Default::default(),
                pinned_bytes: 0,
                total_bytes: 0,
                budget_bytes,
                ahead_bytes: 0,
                leaving_bytes: 0,
                keep,
            })),
            ahead: Mutex::default(),
            unlocking: Mutex::default(),
            news: Arc::default(),
            helpers,
            placing: Placing::default(),
            counters: Counters::default(),
        })
    }

    /// From now on, page-locked blocks are made of this node's memory: the device's, which does not change.
    pub(crate) fn prefer_node(&self, node: usize) {
        let _ = self.placing.node.set(node);
    }

    /// Opens a quota for slabs of this kind: for so many, and [`within`](SlabQuota::keep_within) so many. While it is open, the ring may
    /// have that many more blocks.
    pub(crate) fn open_quota(&self, kind: Kind, slabs: usize, within: usize) -> Arc<SlabQuota> {
        SlabQuota::open(&self.state, kind, slabs, within)
    }

    /// Notified when there is news for threads that wait for a slab.
    pub(crate) fn news(&self) -> &Arc<Signal> {
        &self.news
    }

    /// Whether its slabs may be page-locked, by a driver.
    #[cfg(feature = "dlpack")]
    fn has_driver(&self) -> bool {
        self.driver.is_some()
    }

    /// Identifies the ring while it lives.
    pub(super) fn name(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Whether a slab of this size does not fit into the budget, whatever comes home.
    pub(crate) fn is_beyond_budget(&self, bytes: usize) -> bool {
        block_bytes(bytes).is_none_or(|size| size > self.state.lock().budget_bytes)
    }

    /// Whether the budget has room for as many blocks of this size as the open quotas have shares.
    pub(crate) fn has_room_for_shares(&self, bytes: usize) -> bool {
        let state = self.state.lock();
        let shares = state.shelves.iter().map(|shelf| shelf.shares);
        let shares = shares.fold(0, usize::saturating_add);
        let all_bytes = block_bytes(bytes).map(|size| size.saturating_mul(shares));
        all_bytes.is_some_and(|all_bytes| all_bytes <= state.budget_bytes)
    }

    /// Takes a slab of at least `bytes`, if the budget has room.
    ///
    /// It reuses the smallest idle block that is large enough, and one that is not page-locked only if there is no other.
    /// Otherwise it makes a new block, exactly as large as needed, and evicts idle blocks that proved too small to make
    /// room for it.
    pub(crate) fn take(self: &Arc<Ring>, bytes: usize) -> Option<Slab> {
        let (block, kind) = self.take_block(bytes, bytes, None, 0)?;
        Some(Slab::new(block, kind, Arc::clone(self), None))
    }

    /// Takes a slab for an epoch, as [`take_for`](Ring::take_for), but only one that is idle, and none if the system has refused to
    /// page-lock some.
    pub(crate) fn reuse_for(
        self: &Arc<Ring>,
        quota: &Arc<SlabQuota>,
        bytes: usize,
        largest: usize,
        reserve: usize,
    ) -> Option<Slab> {
        if self.counters.unlockable.get() > 0 || quota.is_full(reserve) {
            return None;
        }
        let request = BlockRequest {
            size: block_bytes(bytes)?,
            largest: largest.max(bytes),
            share: Some((quota.kind(), false)),
            reserve,
        };
        let mut state = self.state.lock();
        let (block, kind) = state.take_idle(&request)?;
        // The quota last: it counts nothing that it does not have, which others might take for a slab that is out.
        let Some(reservation) = quota.reserve(reserve, 0) else {
            state.shelves[kind as usize].free.push(block);
            return None;
        };
        drop(state);
        self.counters.reused.add(1);
        Some(Slab::new(
            block,
            kind,
            Arc::clone(self),
            reservation.taken(),
        ))
    }

    /// Takes a slab that an epoch's quota has counted, if the budget has room for this one and `reserve` more. A new one is made
    /// of `largest` bytes, if the budget has room for that: what the epoch may need for another batch.
    ///
    /// With `grow`, there may be more blocks than the open quotas have shares: the caller made sure that no copy in
    /// flight will bring one home. (An epoch that follows another waits for its last copies, rather than page-lock memory
    /// that would be too much a moment later.)
    pub(crate) fn take_for(
        self: &Arc<Ring>,
        reservation: Reservation,
        bytes: usize,
        largest: usize,
        reserve: usize,
        grow: bool,
    ) -> Option<Slab> {
        let share = Some((reservation.kind(), grow));
        let (block, kind) = self.take_block(bytes, largest, share, reserve)?;
        Some(Slab::new(
            block,
            kind,
            Arc::clone(self),
            reservation.taken(),
        ))
    }

    /// `share`: the kind, and whether there may be more blocks than shares; `None` for a stray, which counts in no share.
    fn take_block(
        &self,
        bytes: usize,
        largest: usize,
        share: Option<(Kind, bool)>,
        reserve: usize,
    ) -> Option<(HostBlock, Kind)> {
        let request = BlockRequest {
            size: block_bytes(bytes)?,
            largest: largest.max(bytes),
            share,
            reserve,
        };
        let mut unlocking = None;
        let (size, evicted) = loop {
            let answer = self.state.lock().take(&request, unlocking.is_some());
            match answer {
                BlockAnswer::Free(block, kind) => {
                    self.counters.reused.add(1);
                    return Some((block, kind));
                }
                BlockAnswer::Room(size, evicted) => break (size, evicted),
                BlockAnswer::Ahead => {
                    unlocking = None; // `ahead` comes first in the lock order
                    drop(self.ahead.lock());
                }
                BlockAnswer::Evict => unlocking = Some(self.unlocking.lock()),
                BlockAnswer::Nothing => return None,
            }
        };
        self.unlock(evicted);
        drop(unlocking);
        let (block, warning) = self.make(size);
        let mut state = self.state.lock();
        let kind = request.kind();
        match &block {
            Some(block) if block.is_pinned() => state.pinned_bytes += size,
            Some(_) => {}
            None => {
                state.total_bytes -= size;
                let shelf = &mut state.shelves[kind as usize];
                shelf.blocks -= 1;
                shelf.strays -= usize::from(request.is_stray());
            }
        }
        drop(state);
        if let Some(warning) = warning {
            log::warn!("{warning}");
        }
        Some((block?, kind))
    }

    /// Unlocks and frees blocks that the caller, which holds `unlocking`, evicted. It may wait for kernels, so it happens
    /// only where the program asked for the memory or a caller needs the room.
    fn unlock(&self, evicted: Vec<HostBlock>) {
        if !evicted.is_empty() {
            drop(evicted);
            self.state.lock().left();
        }
    }

    /// `None` if the system does not have that much memory. Also returns what the caller is to log, without locks: the logger is the
    /// program's.
    fn make(&self, size: usize) -> (Option<HostBlock>, Option<String>) {
        let start = Instant::now();
        let touch: Touch<'_> = &|pointer, bytes| {
            self.placing.place(pointer, bytes); // whichever thread touches it
            self.helpers.zero(pointer, bytes);
        };
        self.counters.made.add(1);
        let Some(driver) = &self.driver else {
            return (HostBlock::pageable(size, touch), None);
        };
        let mut warning = None;
        let block = HostBlock::pinned(driver, size, touch).map(Some).unwrap_or_else(|errors| {
            let reasons: Vec<String> = errors.iter().map(ToString::to_string).collect();
            if self.counters.unlockable.get() == 0 {
                warning = Some(format!(
                    "{}: {size} bytes cannot be page-locked ({}): batches stay in pageable memory and copies do not \
                     overlap. Free memory, raise the limit of locked memory, or lower prefetch or batch_size",
                    driver.name(),
                    reasons.join("; ")
                ));
            }
            self.counters.unlockable.add(1);
            HostBlock::pageable(size, touch)
        });
        self.counters.page_locking_ns.add_since(start);
        (block, warning)
    }

    /// Makes one more block of `bytes` before any thread waits for it; `false` if there are as many as `wanted`, or it cannot
    /// be had. By default, as many are wanted as the open quotas have shares.
    pub(crate) fn make_ahead(&self, kind: Kind, bytes: usize, wanted: Option<usize>) -> bool {
        let Some(size) = block_bytes(bytes).filter(|_| self.counters.unlockable.get() == 0) else {
            return false;
        };
        let making = self.ahead.lock();
        {
            let mut state = self.state.lock();
            let wanted = wanted.unwrap_or(state.shelves[kind as usize].shares);
            let enough = state.blocks_for(kind) >= wanted;
            if enough || !state.has_room(size) {
                return false;
            }
            // Reserved: the block is made without the lock.
            state.total_bytes += size;
            state.shelves[kind as usize].blocks += 1;
            state.ahead_bytes = size;
        }
        let (block, warning) = self.make(size);
        let mut state = self.state.lock();
        state.ahead_bytes = 0;
        let is_made = match block {
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
        };
        drop(making);
        if let Some(warning) = warning {
            log::warn!("{warning}");
        }
        is_made
    }

    /// Brings a block home. Only the caller holds it: nothing reads or writes it any more. The caller notifies waiters.
    ///
    /// A page-locked block is always kept, even beyond a budget that was lowered meanwhile: unlocking would wait for
    /// kernels, and the program did not ask for that.
    fn put(&self, block: HostBlock, kind: Kind, stray: bool) {
        if let Some(driver) = &self.driver {
            // SAFETY: only the caller holds the block (*no access while in flight*).
            unsafe { driver.poison(block.base().as_ptr() as u64, block.capacity()) };
        }
        let mut surplus = None;
        {
            let mut state = self.state.lock();
            let (keep, within) = (state.keep, !state.is_beyond_budget());
            let shelf = &mut state.shelves[kind as usize];
            shelf.strays -= usize::from(stray);
            if block.is_pinned() || (shelf.free.len() < keep && within) {
                shelf.free.push(block);
            } else {
                shelf.blocks -= 1;
                state.total_bytes -= block.capacity();
                surplus = Some(block);
            }
        }
        drop(surplus);
    }

    /// The device's threads for large copies.
    pub(crate) fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    /// Counts a slab that was to be page-locked and could not be.
    pub(crate) fn count_missed(&self) {
        self.counters.missed.add(1);
    }

    /// Frees all idle blocks. Returns the number of bytes.
    pub(super) fn release(&self) -> usize {
        self.give_back(|_| true)
    }

    /// Sets the budget, and frees what is idle beyond it. What is in use is kept when it comes home, until its memory is asked for.
    pub(super) fn set_budget_bytes(&self, bytes: usize) {
        let is_beyond = {
            let mut state = self.state.lock();
            state.budget_bytes = bytes;
            state.is_beyond_budget()
        };
        self.news.notify();
        if is_beyond {
            self.give_back(RingState::is_beyond_budget);
        }
    }

    /// Unlocks and frees idle blocks while `more` returns true. Returns the number of bytes. It waits for other threads
    /// that unlock blocks, and for a block that is being made ahead (for an epoch that has ended meanwhile, say), so that
    /// none is missed.
    fn give_back(&self, more: impl Fn(&RingState) -> bool) -> usize {
        let making = self.ahead.lock();
        let unlocking = self.unlocking.lock();
        let mut evicted = Vec::new();
        {
            let mut state = self.state.lock();
            while more(&state)
                && let Some(block) = state.evict(&[Kind::Whole, Kind::Part], Idle::take_largest)
            {
                evicted.push(block);
            }
        }
        drop(making);
        let bytes = evicted.iter().map(HostBlock::capacity).sum();
        self.unlock(evicted);
        drop(unlocking);
        bytes
    }

    /// (page-locked bytes alive, bytes of them that are idle, budget)
    pub(super) fn bytes(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        let idle_bytes = state.idle_pinned_bytes() + state.leaving_bytes;
        (state.pinned_bytes, idle_bytes, state.budget_bytes)
    }
}

/// Takes a page-locked slab, or says why there is none.
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

    /// A block that is made ahead delays no thread that needs one.
    #[test]
    fn a_slab_that_is_being_made_ahead_is_waited_for() {
        const BYTES: usize = 48 << 20;
        let driver = Driver::Cpu(crate::driver::cpu::Cpu::new(None));
        let ring = Ring::pinned(driver, Arc::default(), BYTES);
        let quota = ring.open_quota(Kind::Whole, 1, usize::MAX);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(ring.make_ahead(Kind::Whole, BYTES, None)));
            while ring.state.lock().ahead_bytes == 0 && ring.state.lock().idle_pinned_bytes() == 0 {
            }
            assert!(ring.take(BYTES / 2).is_some());
            assert!(
                ring.take_for(quota.reserve(0, 0).unwrap(), BYTES, BYTES, 0, true)
                    .is_some_and(|slab| slab.is_page_locked())
            );
        });
        assert_eq!(ring.counters.made.get(), 1);
    }

    fn of_pages(pages: usize) -> Arc<Ring> {
        let driver = Driver::Cpu(crate::driver::cpu::Cpu::new(None));
        Ring::pinned(driver, Arc::default(), pages * PAGE)
    }

    const PAGE: usize = 1 << 12;

    /// Beyond a lowered budget, blocks that come home are kept until their memory is asked for; but they are not room.
    #[test]
    fn surplus_is_kept_and_counts() {
        let ring = of_pages(4);
        let slabs = [1, 1, 2].map(|pages| ring.take(pages * PAGE).unwrap());
        ring.set_budget_bytes(2 * PAGE);
        assert_eq!(ring.bytes(), (4 * PAGE, 0, 2 * PAGE));
        assert!(ring.take(PAGE).is_none());
        drop(slabs);
        assert_eq!(ring.bytes(), (4 * PAGE, 4 * PAGE, 2 * PAGE));
        // They are used again, as far as the budget goes.
        let [one, other] = [(); 2].map(|()| ring.take(PAGE).unwrap());
        assert!(ring.take(PAGE).is_none());
        drop((one, other));
        assert_eq!(ring.counters.made.get(), 3);
        // Lowering the budget again asks for them.
        ring.set_budget_bytes(PAGE);
        let (locked, idle, _) = ring.bytes();
        assert!(locked == idle && locked <= PAGE, "{locked}");
    }

    /// A block of another size needs their room.
    #[test]
    fn surplus_goes_where_room_is_needed() {
        let ring = of_pages(6);
        let slabs = [(); 6].map(|()| ring.take(PAGE).unwrap());
        ring.set_budget_bytes(3 * PAGE);
        drop(slabs);
        let large = ring.take(2 * PAGE).unwrap();
        assert_eq!(ring.bytes(), (3 * PAGE, PAGE, 3 * PAGE));
        assert!(ring.take(2 * PAGE).is_none());
        drop(large);
        assert_eq!(ring.release(), 3 * PAGE);
        assert_eq!(ring.bytes(), (0, 0, 3 * PAGE));
    }

    /// Whatever is taken, released and unlocked at the same time: never more than the budget, and nothing is left in the
    /// end.
    #[test]
    fn no_more_is_locked_than_the_budget_allows() {
        const MOST: usize = 8;
        let options = crate::driver::cpu::Hostile {
            pinned_capacity_bytes: Some(MOST * PAGE),
            ..Default::default()
        };
        let driver = Driver::Cpu(crate::driver::cpu::Cpu::new(Some(options)));
        let ring = Ring::pinned(driver, Arc::default(), MOST * PAGE);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let ring = &ring;
                scope.spawn(move || {
                    for round in 0..200 {
                        let slab = ring.take((1 + (thread + round) % MOST) * PAGE);
                        // The system refuses what is beyond: such a slab would not be page-locked.
                        assert!(slab.is_none_or(|slab| slab.is_page_locked()));
                        match (thread, round % 5) {
                            (0, 0) => ring.set_budget_bytes((1 + round % MOST) * PAGE),
                            (1, 0) => _ = ring.release(),
                            _ => {}
                        }
                    }
                });
            }
        });
        assert_eq!(ring.counters.unlockable.get(), 0);
        ring.release();
        assert_eq!(ring.bytes().0, 0);
    }
}
