//! A decoder's panic becomes an error of its picture.
//!
//! Files come from anywhere, and decoders have bugs. A panic would end the caller's thread, or look like one of the program's own.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Cause;

/// Runs a decoder. What it leaves behind after a panic must not be read: pixels that it wrote, or itself.
pub(in crate::image) fn caught<R>(decode: impl FnOnce() -> Result<R, Cause>) -> Result<R, Cause> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&'static str>().copied());
        Err(Cause::Panicked(text.unwrap_or("no message").to_owned()))
    })
}
