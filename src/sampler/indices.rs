//! Listed indices: a list, unless they follow each other.

use crate::sync::Arc;
use crate::system::room::{self, NoRoom};

/// Indices that a program listed. Clones share the list.
#[derive(Debug, Clone)]
pub(crate) enum Indices {
    /// So many, each one more than the one before.
    Run {
        first: u64,
        count: u64,
    },
    List(Arc<Vec<u64>>),
}

impl Indices {
    /// `least`: there are as many indices, or more.
    pub(crate) fn new(
        least: usize,
        indices: impl IntoIterator<Item = u64>,
    ) -> Result<Indices, NoRoom> {
        let mut indices = indices.into_iter();
        let (first, mut count) = match indices.next() {
            Some(first) => (first, 1),
            None => (0, 0),
        };
        for index in indices.by_ref() {
            if first.checked_add(count) == Some(index) {
                count += 1;
                continue;
            }
            let mut list = room::room_for((least as u64).max(count))?;
            list.extend((0..count).map(|at| first + at));
            room::push(&mut list, index)?;
            for index in indices {
                room::push(&mut list, index)?;
            }
            return Ok(Indices::List(Arc::new(list)));
        }
        Ok(Indices::Run { first, count })
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Indices::Run { count, .. } => *count,
            Indices::List(list) => list.len() as u64,
        }
    }

    #[inline]
    pub(crate) fn get(&self, at: u64) -> Option<u64> {
        match self {
            Indices::Run { first, count } => (at < *count).then(|| first + at),
            Indices::List(list) => list.get(usize::try_from(at).ok()?).copied(),
        }
    }

    /// Turns places in the list into what stands there.
    ///
    /// # Panics
    ///
    /// If there is no such place.
    pub(super) fn look_up(&self, places: &mut [u64]) {
        match self {
            Indices::Run { first, count } => places.iter_mut().for_each(|place| {
                assert!(*place < *count, "place {place} of {count}");
                *place += first;
            }),
            Indices::List(list) => {
                places
                    .iter_mut()
                    .for_each(|place| *place = list[*place as usize]);
            }
        }
    }
}

impl From<Vec<u64>> for Indices {
    fn from(list: Vec<u64>) -> Indices {
        Indices::List(Arc::new(list))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn new(indices: impl IntoIterator<Item = u64>) -> Indices {
        let indices = indices.into_iter();
        Indices::new(indices.size_hint().0, indices).unwrap()
    }

    fn all(indices: &Indices) -> Vec<u64> {
        let all: Vec<u64> = (0..indices.len())
            .map(|at| indices.get(at).unwrap())
            .collect();
        let mut places: Vec<u64> = (0..indices.len()).collect();
        indices.look_up(&mut places);
        assert_eq!(all, places);
        assert_eq!(indices.get(indices.len()), None);
        all
    }

    proptest! {
        #[test]
        fn they_are_what_was_listed(indices in prop::collection::vec(0u64..5, 0..6)) {
            prop_assert_eq!(all(&new(indices.clone())), indices);
        }

        #[test]
        fn those_that_follow_each_other_take_no_memory(first: u64, count in 0u64..100) {
            let last = first.saturating_add(count);
            let run = new(first..last);
            let is_run = matches!(run, Indices::Run { .. });
            prop_assert!(is_run);
            prop_assert!(all(&run).into_iter().eq(first..last));
        }
    }

    #[test]
    fn the_last_index_of_all_has_none_behind_it() {
        assert_eq!(all(&new([u64::MAX])), [u64::MAX]);
        assert_eq!(all(&new([u64::MAX, 0])), [u64::MAX, 0]);
    }

    #[test]
    fn a_list_that_does_not_fit_is_refused() {
        let reversed = (0u64..1 << 50).rev();
        let NoRoom(bytes) = Indices::new(1 << 50, reversed).unwrap_err();
        assert_eq!(bytes, 1 << 53);
    }
}
