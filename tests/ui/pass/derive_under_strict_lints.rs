//! What the macro makes is no reason for any of these lints: this compiles.
#![crate_type = "lib"]
#![forbid(missing_debug_implementations, missing_docs, unreachable_pub)]
#![deny(warnings, unnameable_types, unused_qualifications)]

/// A pair of samples.
#[derive(Debug, pinfeed::Sample)]
pub struct Pair<A: pinfeed::Sample, B> {
    /// The first one.
    pub first: A,
    second: B,
    rest: internal::Rest,
}

/// Without parameters, and with a private field of a private type.
#[derive(Debug, pinfeed::Sample)]
pub struct Plain {
    /// A number.
    pub number: f32,
    rest: internal::Rest,
}

/// A batch.
#[derive(Debug, pinfeed::Batch)]
pub struct Made<T: pinfeed::tensor::Element> {
    /// Numbers.
    pub numbers: pinfeed::Tensor<T>,
    rest: internal::Own,
    #[pinfeed(host)]
    count: internal::Count,
}

/// How many.
pub fn count<T: pinfeed::tensor::Element>(made: &Made<T>) -> usize {
    made.count.0
}

mod internal {
    #[derive(Debug, pinfeed::Batch)]
    pub(super) struct Own(pub(super) Vec<u8>);

    #[derive(Debug)]
    pub(super) struct Count(pub(super) usize);

    #[derive(Debug, pinfeed::Sample)]
    pub(super) struct Rest(pub(super) u8, odd_Name);

    #[allow(non_camel_case_types, non_snake_case)]
    #[derive(Debug, pinfeed::Sample)]
    struct odd_Name {
        imageCHW: f32,
    }
}
