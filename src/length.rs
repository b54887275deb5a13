//! How many samples, in the type that the program has the number in.

/// How many samples there are: a `usize`, such as `paths.len()`, a `u64`, a `u32`, or an `i32`, such as a literal.
///
/// Functions that take a number of samples take one of these; inside, it is a `u64`. The trait is sealed. A literal without a suffix is
/// an `i32`, as everywhere in Rust: write `3_000_000_000u64` for more than that holds.
///
/// # Panics
///
/// Functions that take an `i32` panic if it is negative.
///
/// # Examples
///
/// ```
/// use pinfeed::{Dataset, from_fn};
///
/// let words = ["a", "b", "c"];
/// let of_a_slice = from_fn(words.len(), move |index, _| Ok(words[index as usize].to_owned()));
/// let of_another = from_fn(of_a_slice.len(), |index, _| Ok(index as i64));
/// let of_a_literal = from_fn(3, |index, _| Ok(index as i64));
/// assert_eq!((of_a_slice.len(), of_another.len(), of_a_literal.len()), (3, 3, 3));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number of samples",
    label = "expected a `usize`, a `u64`, a `u32`, or an `i32` that is not negative (as a literal is)"
)]
pub trait Length: Copy + Sealed {}

/// What a number of samples is inside.
pub trait Sealed {
    /// The number.
    fn samples(self) -> u64;
}

impl Length for u64 {}

impl Sealed for u64 {
    fn samples(self) -> u64 {
        self
    }
}

impl Length for u32 {}

impl Sealed for u32 {
    fn samples(self) -> u64 {
        self.into()
    }
}

impl Length for usize {}

impl Sealed for usize {
    fn samples(self) -> u64 {
        self as u64
    }
}

impl Length for i32 {}

impl Sealed for i32 {
    #[track_caller]
    fn samples(self) -> u64 {
        assert!(self >= 0, "there cannot be {self} samples");
        self.unsigned_abs().into()
    }
}
