//! What a rank has left of an epoch's shards, and how that is dealt to other ranks: [`Standing`]. The protocol is decision 29.

use std::collections::VecDeque;
use std::ops::Range;

use crate::error::BoxError;

/// A shard, from some sample on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Begun {
    /// Its place in the epoch's order.
    pub(super) place: u64,
    /// How many samples begin before that, those that were left out among them.
    pub(super) samples: u64,
    /// Where it begins in the shard's archive.
    pub(super) offset: u64,
}

/// What a rank has left, in terms that mean the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    /// The shards that are open, which samples are taken from in turn; and whose turn it is.
    pub(super) open: Vec<Begun>,
    pub(super) turn: usize,
    /// Shards that other ranks had begun, and this one has not opened.
    pub(super) begun: VecDeque<Begun>,
    /// Places in the order, rising. Of these, the rank has the one that is `next` from the beginning, and every `step`-th behind it.
    pub(super) untouched: Vec<Range<u64>>,
    pub(super) next: u64,
    pub(super) step: u64,
}

impl Standing {
    /// All of an epoch of so many shards, on one of several ranks.
    pub(super) fn fresh(shards: u64, rank: u64, ranks: u64) -> Standing {
        Standing {
            open: Vec::new(),
            turn: 0,
            begun: VecDeque::new(),
            untouched: std::iter::once(0..shards).collect(),
            next: rank,
            step: ranks,
        }
    }

    /// Takes the next shard that is not open.
    pub(super) fn take(&mut self) -> Option<Begun> {
        if let Some(begun) = self.begun.pop_front() {
            return Some(begun);
        }
        let place = nth(&self.untouched, self.next)?;
        self.next = self.next.saturating_add(self.step);
        Some(Begun {
            place,
            samples: 0,
            offset: 0,
        })
    }

    /// Deals what several ranks have left to so many others, all equally many shards, give or take one. `None`: two have the same shard, so
    /// they are not of one moment of one run.
    pub(super) fn deal(left: &[Standing], ranks: u64) -> Option<Vec<Standing>> {
        let (mut begun, mut untouched) = (Vec::new(), Vec::new());
        for rank in left {
            begun.extend(rank.open.iter().chain(&rank.begun).copied());
            let mut next = rank.next;
            while let Some(place) = nth(&rank.untouched, next) {
                untouched.push(place);
                next = next.saturating_add(rank.step);
            }
        }
        begun.sort_unstable_by_key(|begun| begun.place);
        untouched.sort_unstable();
        let mut all: Vec<u64> = begun.iter().map(|begun| begun.place).collect();
        all.extend(&untouched);
        all.sort_unstable();
        if all.windows(2).any(|pair| pair[0] == pair[1]) {
            return None;
        }
        let untouched = ranges(&untouched);
        let dealt = begun.len() as u64;
        let of_rank = |rank: u64| Standing {
            open: Vec::new(),
            turn: 0,
            begun: begun
                .iter()
                .skip(rank as usize)
                .step_by(ranks as usize)
                .copied()
                .collect(),
            untouched: untouched.clone(),
            // Where the dealing of the others ended, it goes on.
            next: (rank + ranks - dealt % ranks) % ranks,
            step: ranks,
        };
        Some((0..ranks).map(of_rank).collect())
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        let mut put = |number| put(&mut bytes, number);
        put(self.open.len() as u64);
        put(self.turn as u64);
        put(self.begun.len() as u64);
        for begun in self.open.iter().chain(&self.begun) {
            put(begun.place);
            put(begun.samples);
            put(begun.offset);
        }
        put(self.untouched.len() as u64);
        let mut end = 0;
        for range in &self.untouched {
            put(range.start - end);
            put(range.end - range.start);
            end = range.end;
        }
        put(self.next);
        put(self.step);
        bytes
    }

    /// Reads what [`write`](Standing::write) wrote, of an epoch of so many shards of which `open` are open at a time; `None` if it is
    /// not that.
    pub(super) fn read(bytes: &[u8], shards: u64, open: usize) -> Option<Standing> {
        let mut rest = bytes.strip_prefix(&[FORMAT])?;
        let rest = &mut rest;
        let (count, turn, dealt) = (take(rest)?, take(rest)?, take(rest)?);
        let mut begun = || {
            let begun = Begun {
                place: take(rest)?,
                samples: take(rest)?,
                offset: take(rest)?,
            };
            (begun.place < shards).then_some(begun)
        };
        if count > open as u64
            || (turn > 0 && turn >= count)
            || count.saturating_add(dealt) > shards
        {
            return None;
        }
        let opened: Option<Vec<Begun>> = (0..count).map(|_| begun()).collect();
        let dealt: Option<VecDeque<Begun>> = (0..dealt).map(|_| begun()).collect();
        let (mut untouched, mut end) = (Vec::new(), 0u64);
        for _ in 0..take(rest)? {
            let start = end.checked_add(take(rest)?)?;
            end = start.checked_add(take(rest)?)?;
            if end > shards {
                return None;
            }
            untouched.push(start..end);
        }
        let standing = Standing {
            open: opened?,
            turn: turn as usize,
            begun: dealt?,
            untouched,
            next: take(rest)?,
            step: take(rest)?,
        };
        (standing.step > 0 && rest.is_empty()).then_some(standing)
    }
}

/// What a state of shards begins with.
const FORMAT: u8 = 1;

pub(super) fn wrong() -> BoxError {
    "the state is not one of a stream of so many shards, of which so many are open at a time".into()
}

/// The number at this place of a list of ranges.
fn nth(ranges: &[Range<u64>], mut at: u64) -> Option<u64> {
    for range in ranges {
        let count = range.end - range.start;
        if at < count {
            return Some(range.start + at);
        }
        at -= count;
    }
    None
}

/// Rising numbers, as ranges.
fn ranges(numbers: &[u64]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if last.end == *number => last.end += 1,
            _ => ranges.push(*number..*number + 1),
        }
    }
    ranges
}

/// Writes a number in seven bits a byte, the lowest first (LEB128).
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return (shift < 63 || *byte <= 1).then_some(number);
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Takes all that is left, and what of each shard.
    fn rest(mut standing: Standing) -> Vec<Begun> {
        let mut all = std::mem::take(&mut standing.open);
        all.extend(std::iter::from_fn(|| standing.take()));
        all
    }

    /// As an epoch goes on a rank: shards are opened, and samples of them given out.
    fn go(standing: &mut Standing, open: usize, samples: u64, sizes: &[u64]) -> Vec<(u64, u64)> {
        let mut given = Vec::new();
        for _ in 0..samples {
            while standing.open.len() < open {
                let Some(begun) = standing.take() else { break };
                standing.open.push(begun);
            }
            if standing.open.is_empty() {
                break;
            }
            let turn = standing.turn % standing.open.len();
            let shard = &mut standing.open[turn];
            if shard.samples < sizes[shard.place as usize] {
                given.push((shard.place, shard.samples));
                shard.samples += 1;
                shard.offset += 512;
            }
            if shard.samples >= sizes[shard.place as usize] {
                standing.open.remove(turn);
            }
            standing.turn = if standing.open.is_empty() {
                0
            } else {
                (turn + 1) % standing.open.len()
            };
        }
        given
    }

    proptest! {
        /// Whatever the shards' sizes, and however often ranks change: each sample comes once.
        #[test]
        fn what_is_left_is_dealt_once(
            sizes in prop::collection::vec(0u64..9, 1..40),
            open in 1usize..4,
            runs in prop::collection::vec((1u64..9, prop::collection::vec(0u64..30, 8)), 1..5),
        ) {
            let shards = sizes.len() as u64;
            let mut seen = BTreeMap::new();
            let mut left: Option<Vec<Standing>> = None;
            for (ranks, steps) in runs {
                let mut begun = match left.take() {
                    None => (0..ranks).map(|rank| Standing::fresh(shards, rank, ranks)).collect(),
                    Some(left) => Standing::deal(&left, ranks).unwrap(),
                };
                let counts = begun.iter().map(|standing: &Standing| rest(standing.clone()).len());
                let (least, most) = (counts.clone().min().unwrap(), counts.max().unwrap());
                prop_assert!(most - least <= 1, "{least} to {most}");
                for (standing, steps) in begun.iter_mut().zip(&steps) {
                    for sample in go(standing, open, *steps, &sizes) {
                        *seen.entry(sample).or_insert(0) += 1;
                    }
                    let read = Standing::read(&standing.write(), shards, open);
                    prop_assert_eq!(read.as_ref(), Some(&*standing));
                }
                left = Some(begun);
            }
            for mut standing in left.unwrap() {
                for sample in go(&mut standing, open, u64::from(u16::MAX), &sizes) {
                    *seen.entry(sample).or_insert(0) += 1;
                }
            }
            let all = sizes.iter().zip(0u64..).flat_map(|(size, place)| (0..*size).map(move |sample| (place, sample)));
            prop_assert!(seen.into_iter().eq(all.map(|sample| (sample, 1))));
        }

        #[test]
        fn other_bytes_are_none_or_one(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            for first in [Some(FORMAT), None] {
                let bytes: Vec<u8> = first.into_iter().chain(bytes.clone()).collect();
                if let Some(standing) = Standing::read(&bytes, 100, 4) {
                    prop_assert!(rest(standing.clone()).len() <= 204);
                    prop_assert_eq!(Standing::read(&standing.write(), 100, 4), Some(standing));
                }
            }
        }
    }

    #[test]
    fn ranks_that_have_the_same_shard_are_not_of_one_moment() {
        let [first, second] = [0, 1].map(|rank| Standing::fresh(9, rank, 2));
        let alone = Standing::deal(&[first.clone(), second.clone()], 1);
        let dealt = Standing::deal(&alone.unwrap(), 2).unwrap();
        assert_eq!(Standing::deal(&[first.clone(), first.clone()], 3), None);
        assert!(Standing::deal(&[first, dealt[1].clone()], 3).is_some());
        let mut late = second;
        late.open.push(Begun {
            place: 4,
            samples: 1,
            offset: 512,
        });
        assert_eq!(Standing::deal(&[dealt[0].clone(), late], 3), None);
    }

    #[test]
    fn a_state_is_a_few_bytes() {
        let mut standing = Standing::fresh(10_000, 3, 64);
        go(&mut standing, 4, 100, &[1_000; 10_000]);
        let bytes = standing.write();
        assert!(bytes.len() < 40, "{} bytes", bytes.len());
    }
}
