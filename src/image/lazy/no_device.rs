//! Without the feature `nvjpeg`, no picture is left to a device.

use super::LazyImage;
use crate::error::CollateError;
use crate::sample::{Field, Layout, Row};

/// A picture is left to its device: none is.
#[derive(Debug, Clone, Copy)]
pub(in crate::image) enum OnDevice {}

impl OnDevice {
    pub(super) fn field(self, _: &[usize], _: &mut Layout) -> Result<Field<u8>, CollateError> {
        match self {}
    }

    pub(super) fn fill(
        self,
        _: LazyImage,
        _: &Field<u8>,
        _: &mut Row<'_>,
    ) -> Result<(), CollateError> {
        match self {}
    }
}
