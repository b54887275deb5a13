//! How many bytes of host memory a loader has ahead of its program.

use super::ring::Ring;
use crate::meter::Meter;
use crate::sync::{Arc, AtomicUsize, Ordering, Weak, planted};

/// Bytes of slabs that are filled, full, or on their way to a device; and how many there may be. What the program was given does not count.
#[derive(Debug)]
pub(crate) struct InFlight {
    limit: usize,
    /// Whoever finds no room here waits for news of a slab, or for the consumer, under whose locks the number is seen.
    bytes: AtomicUsize,
    /// Of the devices that share the room: what one of them gives back, another may wait for.
    rings: Vec<Weak<Ring>>,
}

/// The bytes of one slab, counted until it is released or dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    of: Arc<InFlight>,
    bytes: AtomicUsize,
}

impl InFlight {
    pub(crate) fn new(limit: usize, rings: Vec<Weak<Ring>>) -> Arc<InFlight> {
        Arc::new(InFlight {
            limit,
            bytes: AtomicUsize::new(0),
            rings,
        })
    }

    /// Tells whoever waits for a slab of any device that there is room, or will be.
    pub(crate) fn tell(&self) {
        let rings = self.rings.iter().filter_map(Weak::upgrade);
        rings.for_each(|ring| ring.news().notify_interested());
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
    pub(crate) fn try_charge(
        self: &Arc<InFlight>,
        bytes: usize,
        reserved: usize,
        meter: &Meter,
    ) -> Option<Arc<Charge>> {
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
    pub(crate) fn charge(self: &Arc<InFlight>, bytes: usize, meter: &Meter) -> Arc<Charge> {
        let before = self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.charged(before, bytes, meter)
    }

    fn charged(self: &Arc<InFlight>, before: usize, bytes: usize, meter: &Meter) -> Arc<Charge> {
        meter
            .most_bytes_in_flight
            .see(before.saturating_add(bytes) as u64);
        Arc::new(Charge {
            of: Arc::clone(self),
            bytes: AtomicUsize::new(bytes),
        })
    }
}

impl Charge {
    /// It does not count any more.
    pub(crate) fn release(&self) {
        if self.take_back() > 0 {
            self.of.tell();
        }
    }

    /// There is no slab for it, so nothing was ever in flight. That is no news: who looked in vain would look again because of it, for ever.
    /// Returns the bytes.
    pub(crate) fn take_back(&self) -> usize {
        let bytes = self.bytes.swap(0, Ordering::SeqCst);
        self.of.bytes.fetch_sub(bytes, Ordering::SeqCst);
        bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_is_released_once() {
        let (all, meter) = (InFlight::new(100, Vec::new()), Meter::default());
        let try_charge = |bytes| all.try_charge(bytes, 0, &meter);
        // Nor does it take what an earlier one will need.
        assert!(all.try_charge(300, 1, &meter).is_none());
        assert!(all.try_charge(60, 41, &meter).is_none());
        // The first may be larger than all may be together.
        let large = try_charge(300).unwrap();
        assert!(try_charge(1).is_none());
        large.release();
        drop(large);
        assert_eq!(
            (all.free(), meter.most_bytes_in_flight.get()),
            (usize::MAX, 300)
        );
        let one = try_charge(60).unwrap();
        assert_eq!(all.free(), 40);
        assert!(try_charge(41).is_none());
        let other = try_charge(40).unwrap();
        let forced = all.charge(250, &meter);
        assert_eq!((all.free(), meter.most_bytes_in_flight.get()), (0, 350));
        drop((one, other, forced));
        assert_eq!(all.free(), usize::MAX);
    }
}
