//! Slabs: page-locked blocks (or pageable ones) on loan, each of which goes home to its ring.

use std::ptr::NonNull;

use super::Ring;
use super::quota::SlabQuota;
use super::state::Kind;
use crate::device::byte_budget::BytePermit;
use crate::device::host_memory::HostBlock;
use crate::meter::Meter;
use crate::sync::{Arc, planted};
use crate::tensor::{Element, Home, Storage};

/// Host memory on loan from a ring. (Public in name only: the sealed `Collate` mentions it.)
pub struct Slab {
    block: Option<HostBlock>,
    kind: Kind,
    base: NonNull<u8>,
    capacity: usize,
    ring: Arc<Ring>,
    quota: Option<Arc<SlabQuota>>,
    meter: Option<Arc<Meter>>,
    /// Its bytes among those in flight, if these are limited.
    permit: Option<Arc<BytePermit>>,
}

// SAFETY: it owns its block; the address is the block's.
unsafe impl Send for Slab {}
// SAFETY: as above; through `&Slab` there is only the address.
unsafe impl Sync for Slab {}

impl Slab {
    pub(super) fn new(
        block: HostBlock,
        kind: Kind,
        ring: Arc<Ring>,
        quota: Option<Arc<SlabQuota>>,
    ) -> Slab {
        Slab {
            base: block.base(),
            capacity: block.capacity(),
            block: Some(block),
            kind,
            ring,
            quota,
            meter: None,
            permit: None,
        }
    }

    /// Names the epoch that the slab's transfers are measured for.
    pub(crate) fn for_epoch(mut self, meter: Arc<Meter>) -> Slab {
        self.meter = Some(meter);
        self
    }

    /// Counts among the bytes in flight until it is home, or this is released.
    pub(crate) fn charged(mut self, permit: Option<Arc<BytePermit>>) -> Slab {
        self.permit = permit;
        self
    }

    /// Its share of the bytes in flight.
    pub(crate) fn permit(&self) -> Option<Arc<BytePermit>> {
        self.permit.clone()
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Copies into memory of the slab that only the caller holds.
    pub(crate) fn copy<T: Element>(&self, from: &[T], to: &mut [T]) {
        self.ring.helpers().copy(from, to);
    }

    pub(crate) fn outgrows_the_cache(&self, bytes: usize) -> bool {
        let quota = self.quota.as_ref();
        self.is_page_locked() && quota.is_some_and(|quota| quota.outgrows_the_cache(bytes))
    }

    pub(crate) fn is_page_locked(&self) -> bool {
        self.block.as_ref().is_some_and(HostBlock::is_pinned)
    }
}

impl Storage for Slab {
    fn is_pinned(&self) -> bool {
        self.is_page_locked()
    }

    fn home(&self) -> Option<Home> {
        Some(Home {
            ring: self.ring.name(),
            quota: self.quota.as_ref().map(SlabQuota::name),
        })
    }

    fn meter(&self) -> Option<&Arc<Meter>> {
        self.meter.as_ref()
    }

    /// Also of a pageable slab: its ring has page-locked ones, and may go with it.
    #[cfg(feature = "dlpack")]
    fn needs_driver(&self) -> bool {
        self.ring.has_driver()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let is_stray = self.quota.is_none();
        if planted("news of a slab before it is home") {
            self.ring.news().notify_interested();
        }
        if planted("bytes are given back before the block is")
            && let Some(quota) = self.quota.take()
        {
            quota.release();
        }
        // The block first, so that a thread that finds room in the quota finds a block for it, and makes none.
        if let Some(block) = self.block.take() {
            self.ring.put(block, self.kind, is_stray);
        }
        if let Some(quota) = &self.quota {
            quota.release();
        }
        if let Some(permit) = &self.permit {
            permit.release();
        }
        // The news last, so that a thread that is woken finds both.
        if !planted("no news of a slab") && !planted("news of a slab before it is home") {
            self.ring.news().notify_interested();
        }
    }
}

impl std::fmt::Debug for Slab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slab")
            .field("capacity", &self.capacity)
            .field("is_page_locked", &self.is_page_locked())
            .finish()
    }
}
