//! Which pictures are decoded next.

use std::cmp::Reverse;

use crate::picture::Sampling;

/// Where a picture comes from: how many jobs lie before its own, its field, and its number there.
pub(super) type Origin = (usize, usize, usize);

const KINDS: usize = Sampling::ALL.len();

/// The pictures of a job, and which of them are in no chunk yet.
#[derive(Default)]
pub(super) struct Waiting {
    /// By their kind of chroma, in their order: each one's field, and its number there.
    pictures: [Vec<(usize, usize)>; KINDS],
    /// How many of each kind were taken.
    taken: [usize; KINDS],
}

impl Waiting {
    pub(super) fn push(&mut self, sampling: Sampling, field: usize, picture: usize) {
        self.pictures[sampling as usize].push((field, picture));
    }

    /// The first of a kind is in a chunk now.
    pub(super) fn take(&mut self, sampling: Sampling) {
        self.taken[sampling as usize] += 1;
    }

    /// The last that was taken of a kind is in no chunk any more.
    pub(super) fn put_back(&mut self, sampling: Sampling) {
        self.taken[sampling as usize] -= 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        Sampling::ALL.iter().all(|kind| self.of(*kind).is_empty())
    }

    fn of(&self, sampling: Sampling) -> &[(usize, usize)] {
        let kind = sampling as usize;
        &self.pictures[kind][self.taken[kind]..]
    }
}

/// The pictures that wait, in the order in which they are decoded. The jobs come the oldest first; of some, nothing is decoded any more.
///
/// Each kind of chroma costs a call for each chunk that has any, however few pictures of it. So first come those of the kind of which the
/// oldest job has most, of all jobs. When its rare ones are all that it has left, those of the other jobs are decoded with them.
pub(super) fn in_turn<'a>(
    jobs: impl Iterator<Item = Option<&'a Waiting>> + Clone,
) -> impl Iterator<Item = Origin> + Clone {
    let mut kinds = Sampling::ALL;
    if let Some(oldest) = jobs.clone().flatten().find(|job| !job.is_empty()) {
        kinds.sort_by_key(|kind| Reverse(oldest.of(*kind).len()));
    }
    kinds.into_iter().flat_map(move |kind| {
        let jobs = jobs.clone().enumerate();
        jobs.flat_map(move |(job, waiting)| {
            let left = waiting.map_or(&[][..], |waiting| waiting.of(kind));
            left.iter()
                .map(move |&(field, picture)| (job, field, picture))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job with pictures of one field, of these kinds.
    fn job(kinds: &[Sampling]) -> Waiting {
        let mut waiting = Waiting::default();
        for (number, kind) in kinds.iter().enumerate() {
            waiting.push(*kind, 0, number);
        }
        waiting
    }

    /// Takes a chunk of so many pictures: how many calls it costs, and its pictures.
    fn chunk(jobs: &mut [Waiting], kinds: &[&[Sampling]], most: usize) -> (usize, Vec<Origin>) {
        let chunk: Vec<Origin> = in_turn(jobs.iter().map(Some)).take(most).collect();
        let kind_of = |origin: &Origin| kinds[origin.0][origin.2];
        chunk
            .iter()
            .for_each(|origin| jobs[origin.0].take(kind_of(origin)));
        let calls = Sampling::ALL
            .iter()
            .filter(|kind| chunk.iter().any(|origin| kind_of(origin) == **kind));
        (calls.count(), chunk)
    }

    #[test]
    fn rare_kinds_wait_for_others_of_their_kind() {
        // One of 16 is grey.
        let kinds: Vec<Sampling> = (0..256)
            .map(|number| match number % 16 {
                5 => Sampling::Grey,
                _ => Sampling::Both,
            })
            .collect();
        let mut jobs: Vec<Waiting> = (0..4).map(|_| job(&kinds)).collect();
        let (mut calls, mut all) = (Vec::new(), Vec::new());
        let mut first_done = 0;
        while !jobs.iter().all(Waiting::is_empty) {
            let (count, chunk) = chunk(&mut jobs, &[&kinds[..]; 4], 64);
            calls.push(count);
            all.extend(chunk);
            first_done += usize::from(!jobs[0].is_empty());
        }
        assert_eq!(calls, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(first_done, 4, "the oldest job does not wait for the others");
        all.sort_unstable();
        let expected = (0..4).flat_map(|job| (0..256).map(move |number| (job, 0, number)));
        assert!(all.into_iter().eq(expected));
    }

    #[test]
    fn what_is_put_back_is_taken_again() {
        use Sampling::{Both, Grey};
        let kinds = [&[Both, Grey, Both][..], &[Grey, Grey]];
        let mut jobs = kinds.map(job);
        let (_, first) = chunk(&mut jobs, &kinds, 1);
        let (_, second) = chunk(&mut jobs, &kinds, 3);
        assert_eq!(first, [(0, 0, 0)]);
        for origin in &second {
            jobs[origin.0].put_back(kinds[origin.0][origin.2]);
        }
        // Nothing of a job that has failed.
        let left: Vec<Origin> = in_turn([None, Some(&jobs[1])].into_iter()).collect();
        assert_eq!(left, [(1, 0, 0), (1, 0, 1)]);
        let (_, again) = chunk(&mut jobs, &kinds, 3);
        assert_eq!(second, again);
        let (_, last) = chunk(&mut jobs, &kinds, 3);
        assert_eq!(last, [(0, 0, 2)]);
    }
}
