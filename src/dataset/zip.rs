//! Two data sets side by side.

use std::fmt;
use std::num::NonZeroU64;

use super::{Dataset, Pass, pass_on, sample_is_gone};
use crate::error::{BoxError, Error, Result};
use crate::fingerprint::Fingerprint;
use crate::rng::SampleRng;
use crate::sampler::{Blocks, Openings};
use crate::sync::Arc;

/// The data set that [`Dataset::zip`] makes.
#[derive(Clone)]
pub struct Zip<A, B> {
    a: A,
    b: B,
}

impl<A: Dataset, B: Dataset> Zip<A, B> {
    pub(super) fn new(a: A, b: B) -> Result<Zip<A, B>> {
        let (len, other) = (a.len(), b.len());
        if len != other {
            let reason = format!(
                "the data sets have {len} and {other} samples: take a Subset of the longer one"
            );
            return Err(Error::option("Dataset::zip", reason));
        }
        Ok(Zip { a, b })
    }
}

impl<A: Dataset, B: Dataset> Dataset for Zip<A, B> {
    type Sample = (A::Sample, B::Sample);

    /// The shorter length, if they have changed.
    fn len(&self) -> u64 {
        self.a.len().min(self.b.len())
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        match self.len() {
            len if index < len => Ok((self.a.get(index, rng)?, self.b.get(index, rng)?)),
            len => Err(sample_is_gone(len)),
        }
    }

    fn get_many(
        &self,
        indices: &[u64],
        rngs: &mut [SampleRng],
    ) -> Vec<Result<Self::Sample, BoxError>> {
        let len = self.len();
        if indices.iter().any(|index| *index >= len) {
            let each = indices.iter().zip(rngs);
            return each.map(|(index, rng)| self.get(*index, rng)).collect();
        }
        let a = self.a.get_many(indices, rngs).into_iter();
        let b = self.b.get_many(indices, rngs);
        a.zip(b).map(|(a, b)| Ok((a?, b?))).collect()
    }

    /// The more of both.
    fn at_once(&self) -> usize {
        self.a.at_once().max(self.b.at_once())
    }

    fn describe(&self, index: u64) -> Option<String> {
        match (self.a.describe(index), self.b.describe(index)) {
            (Some(a), Some(b)) if a != b => Some(format!("{a}, {b}")),
            (a, b) => a.or(b),
        }
    }

    /// The further of the two.
    fn lookahead(&self) -> usize {
        self.a.lookahead().max(self.b.lookahead())
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        pass_on(&self.a, indices, pass, Some);
        pass_on(&self.b, indices, pass, Some);
    }

    fn pass_ended(&self, pass: Pass) {
        self.a.pass_ended(pass);
        self.b.pass_ended(pass);
    }

    /// Those of the first of both that has blocks. If the other has some, too, it is not told of openings, and fetches its samples one by one.
    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.a.blocks().or_else(|| self.b.blocks())
    }

    fn pass_began(&self, openings: Openings, pass: Pass) {
        match self.a.blocks() {
            Some(_) => self.a.pass_began(openings, pass),
            None => self.b.pass_began(openings, pass),
        }
    }

    fn check_room(&self, openings: Openings, tracks: NonZeroU64, share: usize) -> Result<()> {
        match self.a.blocks() {
            Some(_) => self.a.check_room(openings, tracks, share),
            None => self.b.check_room(openings, tracks, share),
        }
    }

    fn is_registered(&self) -> bool {
        self.a.is_registered() || self.b.is_registered()
    }

    fn has_encoded_pictures(&self) -> bool {
        self.a.has_encoded_pictures() || self.b.has_encoded_pictures()
    }

    fn sample_bytes(&self) -> Option<usize> {
        self.a.sample_bytes()?.checked_add(self.b.sample_bytes()?)
    }

    /// Of both.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(u64::from(self.a.fingerprint()));
        print.add_number(u64::from(self.b.fingerprint()));
        print.finish()
    }
}

impl<A: fmt::Debug, B: fmt::Debug> fmt::Debug for Zip<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Zip").field(&self.a).field(&self.b).finish()
    }
}
