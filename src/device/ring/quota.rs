//! Quotas: how much of a ring each epoch may have.

use super::state::{Kind, RingState};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, planted};

/// An epoch's share of a ring: how many slabs it may have out at the same time. Epochs that follow each other share one.
pub(crate) struct SlabQuota {
    /// The ring's.
    state: Arc<Mutex<RingState>>,
    /// What its slabs are for.
    kind: Kind,
    /// How many epochs share it.
    epochs: AtomicUsize,
    /// How many slabs its epochs have use for.
    slabs: AtomicUsize,
    /// No more than these are to be out, because they are large.
    within: AtomicUsize,
    /// How many were [added](SlabQuota::add_slabs) to that.
    added: AtomicUsize,
    /// What follows from these three, and from `closed`.
    limit: AtomicUsize,
    out: AtomicUsize,
    /// Its epochs are gone.
    closed: AtomicBool,
}

/// The most that a quota may have, so that the sum of all limits cannot overflow.
const LARGEST_SHARE: usize = usize::MAX >> 16;

impl SlabQuota {
    /// As [`Ring::open_quota`](super::Ring::open_quota), of a ring with this state.
    pub(super) fn open(
        state: &Arc<Mutex<RingState>>,
        kind: Kind,
        slabs: usize,
        within: usize,
    ) -> Arc<SlabQuota> {
        let quota = Arc::new(SlabQuota {
            state: Arc::clone(state),
            kind,
            epochs: AtomicUsize::new(1),
            slabs: AtomicUsize::new(slabs),
            within: AtomicUsize::new(within),
            added: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            out: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        quota.set(&mut state.lock());
        quota
    }

    /// The same quota for one more epoch.
    pub(crate) fn share(self: &Arc<SlabQuota>) -> Arc<SlabQuota> {
        self.epochs.fetch_add(1, Ordering::Relaxed);
        Arc::clone(self)
    }

    /// Sets how many slabs its epochs have use for, and how many it may have out if slabs are as large as they are now. A closed quota
    /// stays closed, for the caller may be later than the epoch's end.
    pub(crate) fn set_slabs(&self, slabs: usize, within: usize) {
        let mut state = self.state.lock();
        self.slabs.store(slabs, Ordering::Relaxed);
        self.within.store(within, Ordering::Relaxed);
        self.set(&mut state);
    }

    /// Slabs turned out to be larger: only so many of this quota's are to be out (each other one finds out by itself). What tasks were
    /// told they would find is still theirs: see [`reserve_last`](SlabQuota::reserve_last).
    pub(crate) fn keep_within(&self, within: usize) {
        let mut state = self.state.lock();
        self.within.store(within, Ordering::Relaxed);
        self.set(&mut state);
    }

    /// From now on, it may have so many more out than is set, whatever that is: it turned out to have use for them. Told again, it has no
    /// more.
    pub(crate) fn add_slabs(&self, more: usize) {
        if self.added.load(Ordering::Relaxed) >= more {
            return;
        }
        let mut state = self.state.lock();
        self.added.store(more, Ordering::Relaxed);
        self.set(&mut state);
    }

    /// How many more slabs it could have out, if so many were [added](SlabQuota::add_slabs).
    pub(crate) fn room(&self, more: usize) -> usize {
        let added = self.added.load(Ordering::Relaxed);
        let limit = self.limit.load(Ordering::Relaxed) + more.saturating_sub(added);
        limit.saturating_sub(self.out.load(Ordering::Relaxed))
    }

    fn set(&self, state: &mut RingState) {
        let limit = self.most(self.within.load(Ordering::Relaxed));
        let before = self.limit.swap(limit, Ordering::Relaxed);
        let shelf = &mut state.shelves[self.kind as usize];
        shelf.shares = shelf.shares - before + limit;
    }

    /// How many it may have out, if only so many of what is set are to be. Without the ring's lock, it is a hint: it reads three numbers,
    /// of which another thread may be setting the second. A caller that acts on it looks once more when the slab is counted
    /// ([`reserve_last`](SlabQuota::reserve_last)).
    fn most(&self, within: usize) -> usize {
        if self.closed.load(Ordering::Relaxed) {
            return 0;
        }
        let slabs = self.slabs.load(Ordering::Relaxed).min(within);
        let slabs = slabs.saturating_add(self.added.load(Ordering::Relaxed));
        slabs.min(LARGEST_SHARE)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether slabs of this size, which the epoch fills in turn, do not all stay in the last-level cache until the
    /// device has read them: then non-temporal stores are better.
    pub(crate) fn outgrows_the_cache(&self, bytes: usize) -> bool {
        let slabs = self.limit.load(Ordering::Relaxed);
        bytes.saturating_mul(slabs) > crate::system::cache_bytes()
    }

    /// Ends one of its epochs. The last one closes the quota, because no more will be asked for. Slabs that are out still
    /// come home.
    pub(crate) fn close(&self) {
        if self.epochs.fetch_sub(1, Ordering::AcqRel) == 1 && !planted("a share stays open") {
            self.shut();
        }
    }

    fn shut(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.set(&mut self.state.lock());
    }

    /// Identifies the quota while it lives.
    pub(crate) fn name(self: &Arc<SlabQuota>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// Whether the quota itself has no room, whatever the ring has.
    pub(crate) fn is_full(&self, reserve: usize) -> bool {
        self.out.load(Ordering::SeqCst) + reserve >= self.limit.load(Ordering::SeqCst)
    }

    /// Whether it has none for the task on which the consumer is blocked either.
    pub(crate) fn is_full_for_last(&self) -> bool {
        self.out.load(Ordering::SeqCst) >= self.most(usize::MAX)
    }

    /// How many slabs it may have out.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Counts a slab that is about to be taken, if `reserve` more would still fit. `more`: as if so many were
    /// [added](SlabQuota::add_slabs), which the caller does before it takes the slab.
    pub(crate) fn reserve(
        self: &Arc<SlabQuota>,
        reserve: usize,
        more: usize,
    ) -> Option<Reservation> {
        let more = more.saturating_sub(self.added.load(Ordering::SeqCst));
        let limit = self.limit.load(Ordering::SeqCst).saturating_add(more);
        let reserve = match planted("no bytes are reserved") {
            true => 0,
            false => reserve,
        };
        self.count_one(reserve, limit)
    }

    /// The same, for the task on which the consumer is blocked. It gets what was left for it before slabs became so large that
    /// [fewer](SlabQuota::keep_within) are to be out.
    pub(crate) fn reserve_last(self: &Arc<SlabQuota>) -> Option<Reservation> {
        self.count_one(0, self.most(usize::MAX))
    }

    fn count_one(self: &Arc<SlabQuota>, reserve: usize, limit: usize) -> Option<Reservation> {
        // SeqCst, as `Signal::interest`: a thread that finds no room here has announced before that it waits, and a
        // thread that makes room looks for that afterwards.
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        let more = |out| (out + reserve < limit || planted("no limit")).then_some(out + 1);
        let counted = self.out.fetch_update(set, fetch, more);
        counted.is_ok().then(|| Reservation(Some(Arc::clone(self))))
    }

    pub(in crate::device) fn release(&self) {
        self.out.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A slab of a quota that is counted, and not taken yet.
pub(crate) struct Reservation(Option<Arc<SlabQuota>>);

impl Reservation {
    pub(super) fn kind(&self) -> Kind {
        self.0.as_ref().map_or(Kind::Whole, |quota| quota.kind)
    }

    /// The slab was taken, and counts itself.
    pub(super) fn taken(mut self) -> Option<Arc<SlabQuota>> {
        self.0.take()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(quota) = &self.0 {
            quota.release();
        }
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation").finish_non_exhaustive()
    }
}

impl Drop for SlabQuota {
    /// The quota of an epoch that was forgotten closes when its last slab comes home.
    fn drop(&mut self) {
        self.shut();
    }
}

#[cfg(test)]
mod tests {
    use crate::device::ring::{Kind, Ring};
    use crate::driver::Driver;
    use crate::sync::Arc;

    /// The pin thread may be about to give an epoch more slabs when the epoch ends.
    #[test]
    fn a_closed_account_stays_closed() {
        let ring = Ring::pageable(0);
        let quota = ring.open_quota(Kind::Whole, 2, usize::MAX);
        quota.close();
        quota.set_slabs(100, usize::MAX);
        assert_eq!(ring.state.lock().shelves[0].shares, 0);
    }

    /// Two epochs that follow each other have one share, until both have ended.
    #[test]
    fn a_shared_account_is_closed_by_the_last() {
        let ring = Ring::pageable(0);
        let shares = || ring.state.lock().shelves[0].shares;
        let first = ring.open_quota(Kind::Whole, 5, usize::MAX);
        let second = first.share();
        assert_eq!(shares(), 5);
        first.close();
        assert_eq!(shares(), 5);
        second.close();
        assert_eq!(shares(), 0);
    }

    /// A batch that is ready early takes no slab that the budget then lacks for an earlier one.
    #[test]
    fn what_is_reserved_is_left_in_the_budget() {
        const BYTES: usize = 1 << 12;
        let driver = Driver::Cpu(crate::driver::cpu::Cpu::new(None));
        let ring = Ring::pinned(driver, Arc::default(), 2 * BYTES);
        let quota = ring.open_quota(Kind::Whole, 10, usize::MAX);
        let take = |reserve| {
            let reservation = quota.reserve(reserve, 0)?;
            ring.take_for(reservation, BYTES, BYTES, reserve, true)
        };
        assert!(take(2).is_none());
        let early = take(1);
        assert!(early.is_some());
        assert!(take(1).is_none());
        assert!(take(0).is_some());
        drop(early);
        assert!(take(1).is_some());
    }
}
