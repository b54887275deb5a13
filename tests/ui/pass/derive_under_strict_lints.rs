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

mod internal {
    #[derive(Debug, pinfeed::Sample)]
    pub(super) struct Rest(pub(super) u8, odd_Name);

    #[allow(non_camel_case_types, non_snake_case)]
    #[derive(Debug, pinfeed::Sample)]
    struct odd_Name {
        imageCHW: f32,
    }
}
