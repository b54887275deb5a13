//! How many bytes of host memory a loader has ahead of its program.

use crate::meter::Meter;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, Signal, Weak, planted};

/// Bytes of slabs that are filled, full, or on their way to a device; and how many there may be. What the program was given does not count.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    limit: usize,
    /// A thread that finds no room here waits for news of a slab, or for the consumer. It reads this number under the lock of either.
    bytes: AtomicUsize,
    /// The news of the rings of devices that share the room: what one of them gives back, another may wait for.
    news: Vec<Weak<Signal>>,
    /// One of them found no room since another was told.
    is_missed: AtomicBool,
}

/// The bytes of one slab, counted until it is released or dropped.
#[derive(Debug)]
pub(crate) struct BytePermit {
    of: Arc<ByteBudget>,
    bytes: AtomicUsize,
}

impl ByteBudget {
    pub(crate) fn new(limit: usize, news: Vec<Weak<Signal>>) -> Arc<ByteBudget> {
        Arc::new(ByteBudget {
            limit,
            bytes: AtomicUsize::new(0),
            news,
            is_missed: AtomicBool::new(false),
        })
    }

    /// Tells the threads that wait for a slab of any device that there is room, or will be.
    pub(crate) fn tell(&self) {
        self.tell_others(None);
    }

    fn tell_others(&self, own: Option<&Arc<Signal>>) {
        let all = self.news.iter().filter_map(Weak::upgrade);
        let others = all.filter(|news| own.is_none_or(|own| !Arc::ptr_eq(own, news)));
        others.for_each(|news| news.notify_interested());
    }

    /// The caller found no room, and must look once more: only then is it told of what is given back unused.
    pub(crate) fn miss(&self) {
        self.is_missed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// How many more there may be: any number if there are none.
    pub(crate) fn free(&self) -> usize {
        match self.bytes.load(Ordering::SeqCst) {
            0 => usize::MAX,
            bytes => self.limit.saturating_sub(bytes),
        }
    }

    /// Counts a slab of an epoch; `None` if there is no room for it beside `reserved` bytes, which earlier batches will need.
    pub(crate) fn try_permit(
        self: &Arc<ByteBudget>,
        bytes: usize,
        reserved: usize,
        meter: &Meter,
    ) -> Option<Arc<BytePermit>> {
        let fits = |now: usize| {
            let all = now.saturating_add(bytes);
            let fits = all.saturating_add(reserved) <= self.limit;
            let is_alone = now == 0 && reserved == 0;
            (fits || is_alone || planted("any number of bytes is in flight")).then_some(all)
        };
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        let before = self.bytes.fetch_update(set, fetch, fits).ok()?;
        Some(self.charged(before, bytes, meter))
    }

    /// Counts a slab that cannot wait.
    pub(crate) fn permit(self: &Arc<ByteBudget>, bytes: usize, meter: &Meter) -> Arc<BytePermit> {
        let before = self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.charged(before, bytes, meter)
    }

    fn charged(
        self: &Arc<ByteBudget>,
        before: usize,
        bytes: usize,
        meter: &Meter,
    ) -> Arc<BytePermit> {
        meter
            .most_bytes_in_flight
            .see(before.saturating_add(bytes) as u64);
        Arc::new(BytePermit {
            of: Arc::clone(self),
            bytes: AtomicUsize::new(bytes),
        })
    }
}

impl BytePermit {
    /// It does not count any more.
    pub(crate) fn release(&self) {
        if self.take_off() > 0 {
            self.of.tell();
        }
    }

    /// It was not used, because the device's ring had no slab. Only threads that wait for slabs of other devices are told, and only if one
    /// of them found no room meanwhile. Otherwise the thread that gives it back would wake itself again and again.
    pub(crate) fn give_back(&self, own: &Arc<Signal>) {
        if self.take_off() > 0 && self.of.is_missed.swap(false, Ordering::SeqCst) {
            self.of.tell_others(Some(own));
        }
    }

    fn take_off(&self) -> usize {
        let bytes = self.bytes.swap(0, Ordering::SeqCst);
        self.of.bytes.fetch_sub(bytes, Ordering::SeqCst);
        bytes
    }
}

impl Drop for BytePermit {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::device::Ring;

    #[test]
    fn what_is_charged_is_released_once() {
        let (all, meter) = (ByteBudget::new(100, Vec::new()), Meter::default());
        let try_permit = |bytes| all.try_permit(bytes, 0, &meter);
        // Nor does it take what an earlier one will need.
        assert!(all.try_permit(300, 1, &meter).is_none());
        assert!(all.try_permit(60, 41, &meter).is_none());
        // The first may be larger than all may be together.
        let large = try_permit(300).unwrap();
        assert!(try_permit(1).is_none());
        large.release();
        drop(large);
        assert_eq!(
            (all.free(), meter.most_bytes_in_flight.get()),
            (usize::MAX, 300)
        );
        let one = try_permit(60).unwrap();
        assert_eq!(all.free(), 40);
        assert!(try_permit(41).is_none());
        let other = try_permit(40).unwrap();
        let forced = all.permit(250, &meter);
        assert_eq!((all.free(), meter.most_bytes_in_flight.get()), (0, 350));
        drop((one, other, forced));
        assert_eq!(all.free(), usize::MAX);
    }

    /// Of what was in use, all devices are told. Of what was not used, only the other devices are told, if they looked for room meanwhile.
    /// The device that gives it back is not told: it would look again, and give it back again.
    #[test]
    fn devices_are_told_of_room() {
        let [own, other] = [Ring::pageable(0), Ring::pageable(0)];
        let rings = [&own, &other];
        let news = rings.map(|ring| Arc::downgrade(ring.news()));
        let all = ByteBudget::new(100, news.to_vec());
        let _interest = rings.map(|ring| ring.news().interest());
        let meter = Meter::default();
        let told = |end: &dyn Fn(&BytePermit)| {
            let before = rings.map(|ring| ring.news().ticket());
            let permit = all.try_permit(60, 0, &meter).unwrap();
            end(&permit);
            drop(permit);
            assert_eq!(all.free(), usize::MAX);
            let after = rings.map(|ring| ring.news().ticket());
            [before[0] != after[0], before[1] != after[1]]
        };
        assert_eq!(told(&BytePermit::release), [true, true]);
        assert_eq!(told(&|permit| permit.give_back(own.news())), [false, false]);
        let misses = |permit: &BytePermit| {
            assert!(all.try_permit(60, 0, &meter).is_none());
            all.miss();
            permit.give_back(own.news());
        };
        assert_eq!(told(&misses), [false, true]);
        assert_eq!(told(&|permit| permit.give_back(own.news())), [false, false]);
    }
}
