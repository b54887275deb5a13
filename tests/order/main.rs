//! Which samples an epoch has, in which order, on which rank and device; and that a run which stops goes on there.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

mod batch_samplers;
mod blocks;
mod chosen;
mod combinations;
mod complaints;
mod epoch_samples;
mod in_order;
mod ranks;
mod resume;
mod sampler_properties;
mod samplers;
mod serialized;
mod split;
mod split_options;
mod split_states;
