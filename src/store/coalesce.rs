//! Which ranges of an object are read by one request.

use std::ops::Range;

/// Ranges with less between them are read at once: a request takes as long as about so many bytes of it.
const GAP: u64 = 1 << 20;

/// What several ranges may take together. A longer one is read alone.
const MOST: u64 = 16 << 20;

/// A request, and which of the ranges it brings.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) range: Range<u64>,
    pub(super) members: Vec<usize>,
}

/// Sorts the ranges into requests, in the order of their beginnings. Those that end before they begin stand alone, and empty ones with
/// others or alone.
pub(super) fn runs(ranges: &[Range<u64>]) -> Vec<Run> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|at| (ranges[*at].start, ranges[*at].end));
    let mut runs: Vec<Run> = Vec::new();
    for at in order {
        let range = &ranges[at];
        if let Some(run) = runs.last_mut() {
            let end = run.range.end.max(range.end);
            let is_near = range.start.saturating_sub(run.range.end) < GAP;
            let is_within = range.end <= run.range.end;
            if is_near && range.start <= range.end && (is_within || end - run.range.start <= MOST) {
                run.range.end = end;
                run.members.push(at);
                continue;
            }
        }
        runs.push(Run {
            range: range.clone(),
            members: vec![at],
        });
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_near_is_read_at_once_up_to_the_most() {
        let of = |ranges: &[Range<u64>]| -> Vec<(Range<u64>, Vec<usize>)> {
            let runs = runs(ranges).into_iter();
            runs.map(|run| (run.range, run.members)).collect()
        };
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[MIB + 9..MIB + 20, 0..10]), [(0..MIB + 20, vec![1, 0])]);
        assert_eq!(
            of(&[0..10, MIB + 10..MIB + 20]),
            [(0..10, vec![0]), (MIB + 10..MIB + 20, vec![1])]
        );
        assert_eq!(
            of(&[0..20 * MIB, 5..6, 20 * MIB..20 * MIB + 1]),
            [(0..20 * MIB, vec![0, 1]), (20 * MIB..20 * MIB + 1, vec![2])]
        );
        assert_eq!(of(&[3..3, 3..3]), [(3..3, vec![0, 1])]);
    }

    proptest! {
        #[test]
        fn each_range_is_in_one_request(
            pairs in prop::collection::vec((0..40 * MIB, 0..3 * MIB), 0..40)
        ) {
            let ranges: Vec<Range<u64>> = pairs.iter().map(|(start, len)| *start..start + len).collect();
            let runs = runs(&ranges);
            let mut seen: Vec<usize> = runs.iter().flat_map(|run| run.members.clone()).collect();
            seen.sort_unstable();
            prop_assert!(seen.iter().copied().eq(0..ranges.len()));
            for run in &runs {
                prop_assert!(run.range.end - run.range.start <= MOST);
                for member in &run.members {
                    let range = &ranges[*member];
                    prop_assert!(run.range.start <= range.start && range.end <= run.range.end);
                }
            }
        }
    }
}
