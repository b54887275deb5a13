//! Operations on decoded pixels: resampling into their row ([`render`](mod@render)), and changes in place ([`change`]).

mod change;
mod colour;
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "it asks for SSSE3 before it uses it")
)]
mod mirror;
mod render;
mod scratch;
mod warp;

pub(super) use change::Change;
pub(super) use colour::jittered;
pub(super) use render::{Labels, Look, PixelKind, Rgb, carry_out, render, swap};
pub(super) use scratch::{Buffer, Scratch};
pub(super) use warp::Warp;

pub(super) use crate::picture::Colour;
