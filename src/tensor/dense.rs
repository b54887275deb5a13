//! Which batches can travel in parts.

use std::marker::PhantomData;

/// Whether a batch of `S` is nothing but its fields, each of one row a sample ([`Sample::DENSE`](crate::Sample)).
///
/// The crate says so of its own samples, and the derive macro of structs of such; samples that implement the trait by hand
/// are not dense. Memory safety does not rest on it: each part of a batch is checked against the first.
#[derive(Debug)]
pub struct Dense<S> {
    holds: bool,
    of: PhantomData<fn(S)>,
}

impl<S> Dense<S> {
    pub(crate) const YES: Dense<S> = Dense::new(true);
    /// What is said if nothing is said.
    pub const NO: Dense<S> = Dense::new(false);

    const fn new(holds: bool) -> Dense<S> {
        let of = PhantomData;
        Dense { holds, of }
    }

    /// For the derive macro: of a struct, before its fields are looked at.
    pub const fn __of_fields() -> Dense<S> {
        Dense::YES
    }

    /// For the derive macro: also of this field.
    pub const fn __and<F>(self, field: &Dense<F>) -> Dense<S> {
        Dense::new(self.holds && field.holds)
    }

    pub(crate) const fn holds(&self) -> bool {
        self.holds
    }
}
