//! What a batch leaves to its device.

use super::Backend;
#[cfg(feature = "nvjpeg")]
use crate::picture::DecoderLimits;

/// What the device that a batch is made for does itself. By default, nothing: all rows are made on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Offload {
    /// It gathers rows that lie in memory that was registered for this backend's devices.
    pub(crate) gathers: Option<Backend>,
    /// It decodes such pictures.
    #[cfg(feature = "nvjpeg")]
    pub(crate) decodes: Option<DecoderLimits>,
}
