//! Which tokens of which documents make a row of a fixed length: a pure function of the documents' lengths.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::sampler::{RandomSampler, Sampler};
use crate::system::room::{NoRoom, check_room};

/// The epoch that documents are shuffled as, which no training comes to: a loader with this seed has other orders.
const SHUFFLED_AS: u64 = u64::MAX - 1;

/// How documents are packed into rows of `n` tokens.
///
/// # Examples
///
/// Documents of 3, 2, 4 and 1 tokens in rows of 5:
///
/// ```
/// use pinfeed::dataset::{PackedDataset, PackingStrategy};
/// use pinfeed::{Dataset, DataLoader};
///
/// let documents = || vec![vec![30u32, 31, 32], vec![20, 21], vec![40, 41, 42, 43], vec![10]];
/// let rows = |packing| -> Result<Vec<Vec<u32>>, pinfeed::Error> {
///     let packed = PackedDataset::new(documents(), &[3, 2, 4, 1], 5, packing)?;
///     let loader = DataLoader::builder(packed.map(|row, _| Ok(row.tokens))).build()?;
///     loader.epoch(0).map(|row| Ok(row?.to_vec())).collect()
/// };
/// assert_eq!(rows(PackingStrategy::Concatenated)?, [[30, 31, 32, 20, 21], [40, 41, 42, 43, 10]]);
/// assert_eq!(rows(PackingStrategy::BestFit)?, [[40, 41, 42, 43, 10], [30, 31, 32, 20, 21]]);
/// assert_eq!(rows(PackingStrategy::Shuffled { seed: 3 })?.len(), 2);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PackingStrategy {
    /// One document behind the other, in their own order, cut into rows: what is used to train GPTs. All rows but the last are
    /// full. A document that does not end in its row goes on in the next one.
    Concatenated,
    /// As [`Concatenated`](PackingStrategy::Concatenated), with the documents in a random order that follows from the seed and their number.
    Shuffled {
        /// The order's seed.
        seed: u64,
    },
    /// Documents stay whole, and rows have as little padding as best-fit decreasing leaves: for fine-tuning. A
    /// document of more than `n` tokens is cut into rows of its own and a rest, which is packed as a document is.
    /// (Ding et al., "Fewer Truncations Improve Language Modeling", 2024.)
    ///
    /// Rows with long documents come first, so shuffle them.
    BestFit,
}

/// The tokens of a document that lie in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) document: u64,
    pub(crate) tokens: Range<u64>,
}

/// All rows.
pub(crate) enum Rows {
    /// One document behind the other.
    Stream {
        /// Where each document ends, in the order that they come in.
        ends: Vec<u64>,
        order: Option<RandomSampler>,
    },
    Fitted {
        lengths: Vec<u64>,
        /// Row by row.
        parts: Vec<Part>,
        /// Where each row's parts begin, and where the last row's end.
        starts: Vec<usize>,
    },
}

/// A part of a document, all but the last of which have as many tokens as a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    document: u64,
    /// Which of its document's.
    number: u32,
    /// In tokens.
    length: u32,
}

impl Rows {
    /// Packs documents into rows of `n` tokens.
    pub(crate) fn new(lengths: &[u64], n: u32, packing: PackingStrategy) -> Result<Rows, String> {
        check_rows(lengths, n, packing).map_err(|no_room| {
            format!(
                "the list of what lies in which row takes {no_room}: make rows longer, pack the documents in shards, or leave out those that \
                 are very long"
            )
        })?;
        let (order, count) = match packing {
            PackingStrategy::BestFit => return Rows::fitted(lengths, n),
            PackingStrategy::Concatenated => (None, lengths.len()),
            PackingStrategy::Shuffled { seed } => (
                Some(RandomSampler::with_seed(lengths.len() as u64, seed)),
                lengths.len(),
            ),
        };
        let (mut ends, mut end) = (Vec::with_capacity(count), 0u64);
        for place in 0..count as u64 {
            let length = lengths[document_at(&order, place) as usize];
            end = end.checked_add(length).ok_or(TOO_MANY)?;
            ends.push(end);
        }
        Ok(Rows::Stream { ends, order })
    }

    fn fitted(lengths: &[u64], n: u32) -> Result<Rows, String> {
        let (mut parts, mut rests) = (Vec::new(), Vec::new());
        for (document, length) in (0..).zip(lengths) {
            let whole = u32::try_from(length / u64::from(n)).map_err(|_| TOO_MANY)?;
            let part = |number, length| Part {
                document,
                number,
                length,
            };
            parts.extend((0..whole).map(|number| part(number, n)));
            match (length % u64::from(n)) as u32 {
                0 => {}
                rest => rests.push(part(whole, rest)),
            }
        }
        rests.sort_by_key(|rest| Reverse(rest.length)); // (stable: of equal ones, the first document's comes first)

        // Full rows have one part each. `rows[i]` is the row of the rest `i`.
        let full = parts.len();
        let (mut open, mut count) = (BTreeMap::<u32, Vec<usize>>::new(), full);
        let mut rows = Vec::with_capacity(rests.len());
        for rest in &rests {
            let (row, space) = match open.range_mut(rest.length..).next() {
                Some((&space, fitting)) => {
                    let row = fitting.pop().unwrap_or_default();
                    if fitting.is_empty() {
                        open.remove(&space);
                    }
                    (row, space)
                }
                None => {
                    count += 1;
                    (count - 1, n)
                }
            };
            if space > rest.length {
                open.entry(space - rest.length).or_default().push(row);
            }
            rows.push(row);
        }

        let mut starts: Vec<usize> = (0..=full).collect();
        starts.resize(count + 1, 0);
        rows.iter().for_each(|row| starts[row + 1] += 1);
        for row in full..count {
            starts[row + 1] += starts[row];
        }
        parts.resize(
            full + rests.len(),
            Part {
                document: 0,
                number: 0,
                length: 0,
            },
        );
        let mut next = starts.clone();
        for (row, rest) in rows.into_iter().zip(rests) {
            parts[next[row]] = rest;
            next[row] += 1;
        }
        Ok(Rows::Fitted {
            lengths: lengths.to_vec(),
            parts,
            starts,
        })
    }

    /// The number of rows.
    pub(crate) fn len(&self, n: u32) -> u64 {
        match self {
            Rows::Stream { .. } => self.tokens().div_ceil(u64::from(n)),
            Rows::Fitted { starts, .. } => starts.len() as u64 - 1,
        }
    }

    /// The number of tokens of all documents.
    pub(crate) fn tokens(&self) -> u64 {
        match self {
            Rows::Stream { ends, .. } => ends.last().copied().unwrap_or(0),
            Rows::Fitted { lengths, .. } => lengths.iter().sum(),
        }
    }

    /// What lies in a row, in order, each with the length of its document. A row that does not exist has nothing.
    pub(crate) fn pieces(&self, row: u64, n: u32) -> Vec<(Piece, u64)> {
        match self {
            Rows::Stream { ends, order } => {
                let mut from = row.saturating_mul(u64::from(n));
                let to = from.saturating_add(u64::from(n)).min(self.tokens());
                let mut pieces = Vec::new();
                while from < to {
                    // Documents without tokens end where the ones before them do.
                    let place = ends.partition_point(|end| *end <= from);
                    let start = place.checked_sub(1).map_or(0, |before| ends[before]);
                    let (end, document) = (ends[place], document_at(order, place as u64));
                    let tokens = from - start..end.min(to) - start;
                    pieces.push((Piece { document, tokens }, end - start));
                    from = end.min(to);
                }
                pieces
            }
            Rows::Fitted {
                lengths,
                parts,
                starts,
            } => {
                let row = usize::try_from(row).unwrap_or(usize::MAX);
                let bounds = starts.get(row).zip(starts.get(row.saturating_add(1)));
                let parts = bounds.and_then(|(start, end)| parts.get(*start..*end));
                let piece = |part: &Part| {
                    let start = u64::from(part.number) * u64::from(n);
                    let tokens = start..start + u64::from(part.length);
                    let document = part.document;
                    (Piece { document, tokens }, lengths[document as usize])
                };
                parts.unwrap_or_default().iter().map(piece).collect()
            }
        }
    }
}

/// Refuses rows whose list exceeds the memory that the process may use: a length is a number that the program says, and may be wrong.
fn check_rows(lengths: &[u64], n: u32, packing: PackingStrategy) -> Result<(), NoRoom> {
    let documents = lengths.len() as u64;
    match packing {
        PackingStrategy::Concatenated | PackingStrategy::Shuffled { .. } => {
            check_room(documents, size_of::<u64>())
        }
        PackingStrategy::BestFit => {
            let parts = lengths.iter().map(|length| length.div_ceil(u64::from(n)));
            let parts = parts.fold(documents, u64::saturating_add);
            check_room(parts, PART_BYTES)
        }
    }
}

/// What each part takes while rows are fitted: itself, as a rest, too, its row, and where rows begin, twice.
const PART_BYTES: usize = 2 * size_of::<Part>() + 3 * size_of::<usize>();

const TOO_MANY: &str = "the documents have more tokens than can be counted";

fn document_at(order: &Option<RandomSampler>, place: u64) -> u64 {
    match order {
        Some(order) => order.index(SHUFFLED_AS, place),
        None => place,
    }
}
