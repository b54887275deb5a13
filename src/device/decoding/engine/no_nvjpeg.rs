//! Where there is no nvJPEG: without the feature, and on systems that it is not made for. Nothing is opened, so nothing is called.

use super::super::memory::Taken;
use super::{Outcome, Work};
use crate::driver::{Driver, RawEvent};
use crate::error::{Error, Result};
use crate::sync::Arc;

/// A decoder that is open: there is none.
pub(super) enum NvJpeg {}

impl NvJpeg {
    /// Only a stand-in can be opened, for the CPU device.
    pub(super) fn open(driver: &Driver, _: &Arc<Taken>) -> Result<Option<NvJpeg>> {
        match driver.is_host() {
            true => Ok(None),
            false => Err(Error::Decoder {
                device: driver.name(),
                reason: "there is no nvJPEG for this system".to_owned(),
            }),
        }
    }

    pub(super) fn has_kernels_only(&self) -> bool {
        match *self {}
    }

    pub(super) fn most_pictures(&self) -> usize {
        match *self {}
    }

    pub(super) fn fits<'a>(&self, _: impl Iterator<Item = Work<'a>>) -> usize {
        match *self {}
    }

    pub(super) fn is_free(&self) -> bool {
        match *self {}
    }

    pub(super) fn prepare(&mut self, _: &[Work<'_>]) -> Result<()> {
        match *self {}
    }

    /// # Safety
    ///
    /// It is not called.
    pub(super) unsafe fn decode(&mut self, _: &[Work<'_>], _: &[RawEvent]) -> Result<()> {
        match *self {}
    }

    pub(super) fn is_drawn(&self) -> bool {
        match *self {}
    }

    pub(super) fn end(&mut self) -> Option<Result<Vec<Outcome>>> {
        match *self {}
    }
}
