//! Room for bytes in flight, where several devices share a limit: what one of them waits for, another gives back.

use super::Memory;
use crate::device::{ByteBudget, Coming, Device};
use crate::pipeline::plan::options::Options;
use crate::sync::Arc;

/// The bytes in flight, if they are limited.
pub(crate) fn limited(options: &[Options]) -> Option<Arc<ByteBudget>> {
    let limit = options[0].max_bytes?;
    let several = options.iter().filter(|_| options.len() > 1);
    let pinning = several.filter_map(|options| options.pinning.as_ref());
    let news = pinning.map(|pinning| Arc::downgrade(pinning.ring().news()));
    Some(ByteBudget::new(limit, news.collect()))
}

impl<B: 'static> Memory<B> {
    /// A batch is on its way to its device: when its copy ends, there is room.
    pub(crate) fn makes_room(&self) {
        if let Some(byte_budget) = &self.byte_budget {
            byte_budget.tell();
        }
    }

    /// Lets slabs come home whose copies to other devices have ended. Their own pin threads may have nothing to do.
    pub(super) fn settle_others(&self, device: usize) {
        self.others(device).for_each(|other| other.inner.settle());
    }

    /// A copy to another device that makes room when it ends.
    pub(super) fn coming_elsewhere(&self, device: usize) -> Coming {
        let coming = self
            .others(device)
            .map(|other| other.inner.coming_home(None));
        // (What does not hold a batch's slab does not count.)
        let mut batches = coming.filter(|coming| matches!(coming, Coming::Batch(_)));
        batches.next().unwrap_or(Coming::Nothing)
    }

    fn others(&self, device: usize) -> impl Iterator<Item = &Device> {
        let own = self.options[device].pinning.as_ref();
        let pinning = self
            .options
            .iter()
            .filter_map(|options| options.pinning.as_ref());
        let devices = pinning.map(|pinning| &pinning.device);
        devices.filter(move |other| {
            own.is_none_or(|own| !Arc::ptr_eq(&own.device.inner, &other.inner))
        })
    }
}
