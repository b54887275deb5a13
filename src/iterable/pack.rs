//! Documents of an iterable, packed into rows of a fixed length.

use std::fmt;
use std::ops::Range;

use super::ask::{Asked, ask, told};
use super::loaded::Loaded;
use super::state::{Reader, Tag, Writer, fingerprint, wrong};
use super::windows::{Stand, Windows, shuffle};
use super::{ItemIter, IterableDataset, Shard, progress};
use crate::dataset::{Document, PackingStrategy, Piece, Rows};
use crate::error::{BoxError, DocumentError, Error, Interrupted, Result};
use crate::rng::{RngKey, SampleRng};
use crate::sync::Arc;
use crate::tensor::PackedRow;

/// Documents of an iterable, packed into rows of a fixed length: [`IterableDataset::pack`] makes it, and says how.
///
/// Its samples are [`PackedRow`]s, as those of [`dataset::PackedDataset`](crate::dataset::PackedDataset), so a batch is a
/// [`PackedBatch`](crate::packed::PackedBatch).
///
/// # Examples
///
/// Documents of 3, 2, 4 and 1 tokens in rows of 5:
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::packed::PackedRow;
/// use pinfeed::iterable::{self, IterableDataset};
///
/// fn rows(packed: impl IterableDataset<Sample = PackedRow<u32>>) -> pinfeed::Result<Vec<Vec<u32>>> {
///     let loader = DataLoader::iterable(packed.map(|row, _| Ok(row.tokens))).build()?;
///     loader.epoch(0).map(|row| Ok(row?.to_vec())).collect()
/// }
///
/// let documents = || {
///     let documents = [vec![30u32, 31, 32], vec![20, 21], vec![40, 41, 42, 43], vec![10]];
///     iterable::from_fn(move |_, _| Ok(documents.clone().into_iter().map(Ok)))
/// };
/// assert_eq!(rows(documents().pack(5)?)?, [[30, 31, 32, 20, 21], [40, 41, 42, 43, 10]]);
///
/// let mut whole = rows(documents().pack(5)?.with_best_fit(4))?;
/// whole.sort(); // they come in a random order
/// assert_eq!(whole, [[30, 31, 32, 20, 21], [40, 41, 42, 43, 10]]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct Packed<S: IterableDataset<Sample: Document>> {
    source: Arc<S>,
    /// The length of a row.
    n: u32,
    /// How many documents are packed together; `None`: they are concatenated.
    buffer_size: Option<usize>,
    padding: <S::Sample as Document>::Token,
}

impl<S: IterableDataset<Sample: Document>> Packed<S> {
    pub(super) fn new(source: S, n: usize) -> Result<Packed<S>> {
        let n = u32::try_from(n).ok().filter(|n| i32::try_from(*n).is_ok());
        let refused = || Error::option("pack", "a row has 1 to 2³¹ - 1 tokens");
        Ok(Packed {
            source: Arc::new(source),
            n: n.filter(|n| *n > 0).ok_or_else(refused)?,
            buffer_size: None,
            padding: Default::default(),
        })
    }

    /// Keeps documents whole: the first `buffer_size` of them are packed as
    /// [`PackingStrategy::BestFit`] packs all documents of a data set, and then the next so many, and so on. Only a document of
    /// more than a row is cut, into rows of its own and a rest. The rows of such a window come in a random order, by the loader's
    /// seed, epoch and rank; otherwise those with long documents would all come first. (Default: documents are concatenated.)
    ///
    /// A row is padded where nothing in its window fits: mostly the window's last row. Where documents are a quarter of a row on
    /// average, 2.5 % of all tokens are padding with a buffer of 100 documents, and 0.25 % with 1,000. (Where many of them are longer than
    /// half a row, it is more: 1.3 % with 1,000 documents of 0 to `n` tokens. Those have few others that fit beside them.)
    ///
    /// No more than two windows of documents are held, and mostly one: `buffer_size` times the size of a document, in bytes, on each rank.
    /// While one window is given out, the next is filled, a few documents for each row. The first row of an epoch waits for a whole window,
    /// and a run that is resumed reads two windows again at most. (With 0 and 1, each document has rows of its own.)
    pub fn with_best_fit(self, buffer_size: usize) -> Packed<S> {
        Packed {
            buffer_size: Some(buffer_size.max(1)),
            ..self
        }
    }

    /// Sets the token that rows are filled with. Default: 0.
    pub fn with_padding(self, token: <S::Sample as Document>::Token) -> Packed<S> {
        Packed {
            padding: token,
            ..self
        }
    }
}

impl<S: IterableDataset<Sample: Document>> IterableDataset for Packed<S> {
    type Item = Pieces<S::Sample>;
    type Sample = PackedRow<<S::Sample as Document>::Token>;
    type Iter = PackedIter<S>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<PackedIter<S>, BoxError> {
        // Each rank has an order of its own, and documents draw other numbers than rows.
        let documents = Loaded::open(&self.source, epoch, shard)?;
        let seed = documents.seed();
        let documents = Documents(documents);
        Ok(PackedIter {
            n: self.n,
            seed,
            epoch,
            packer: match self.buffer_size {
                None => Packer::Concatenate(Concatenate::new(documents)),
                Some(size) => Packer::BestFit(Windows::new(documents, size)),
            },
        })
    }

    /// Puts a row together: what copies tokens is done by all workers.
    fn load(&self, pieces: Self::Item, _: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        let mut row = PackedRow {
            tokens: Vec::with_capacity(self.n as usize),
            lengths: Vec::with_capacity(pieces.0.len()),
        };
        for (document, tokens) in pieces.0 {
            row.lengths.push(tokens.len());
            row.tokens.extend_from_slice(&document.tokens()[tokens]);
        }
        row.tokens.resize(self.n as usize, self.padding);
        Ok(row)
    }

    fn fingerprint(&self) -> u32 {
        let buffer_size = self.buffer_size.unwrap_or(0) as u64;
        let inner = u64::from(self.source.fingerprint());
        fingerprint(Tag::Pack, [u64::from(self.n), buffer_size, inner])
    }
}

impl<S: IterableDataset<Sample: Document>> fmt::Debug for Packed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed")
            .field("n", &self.n)
            .field("buffer_size", &self.buffer_size)
            .finish_non_exhaustive()
    }
}

/// An item of [`Packed`]: the documents, and parts of documents, that make a row. Cloning it copies no tokens.
pub struct Pieces<D>(Vec<(Arc<D>, Range<usize>)>);

impl<D> Clone for Pieces<D> {
    fn clone(&self) -> Pieces<D> {
        Pieces(self.0.clone())
    }
}

impl<D> fmt::Debug for Pieces<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.0.iter().map(|(_, tokens)| tokens);
        f.debug_list().entries(tokens).finish()
    }
}

/// The open iterator of [`Packed`].
pub struct PackedIter<S: IterableDataset<Sample: Document>> {
    n: u32,
    seed: u64,
    epoch: u64,
    packer: Packer<S>,
}

enum Packer<S: IterableDataset<Sample: Document>> {
    Concatenate(Concatenate<Documents<S>, S::Sample>),
    BestFit(Windows<Documents<S>, Pieces<S::Sample>>),
}

impl<S: IterableDataset<Sample: Document>> ItemIter for PackedIter<S> {
    type Item = Pieces<S::Sample>;

    fn next(&mut self) -> Option<Result<Self::Item, BoxError>> {
        told(match &mut self.packer {
            Packer::Concatenate(packer) => packer.next(self.n as usize),
            Packer::BestFit(windows) => windows.next(best_fit(self.n, self.seed, self.epoch)),
        })
    }

    fn state(&self) -> Option<Vec<u8>> {
        let state = Writer::new(Tag::Pack).number(u64::from(self.n));
        match &self.packer {
            Packer::Concatenate(packer) => packer.state(state.number(0)),
            Packer::BestFit(windows) => windows.state(state.number(1)),
        }
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(Tag::Pack, state)?;
        let (n, kind) = (state.number()?, state.number()?);
        if n != u64::from(self.n) {
            return Err(format!(
                "the state is that of rows of {n} tokens, and these have {}",
                self.n
            )
            .into());
        }
        match (kind, &mut self.packer) {
            (0, Packer::Concatenate(packer)) => packer.seek(state, self.n as usize),
            (1, Packer::BestFit(windows)) => {
                let stand = Stand::read(state)?;
                windows.seek(stand, best_fit(self.n, self.seed, self.epoch))
            }
            _ => Err(wrong()),
        }
    }
}

impl<S: IterableDataset<Sample: Document>> fmt::Debug for PackedIter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedIter")
            .field("n", &self.n)
            .finish_non_exhaustive()
    }
}

/// The documents of an iterable, loaded: how long they are must be known before anything can be packed.
struct Documents<S: IterableDataset>(Loaded<S>);

impl<S: IterableDataset<Sample: Document>> Documents<S> {
    fn step(&mut self) -> Asked<Arc<S::Sample>> {
        let next = self.0.next(|document, _| {
            document.tokens(); // those of a tensor may be nowhere on the host
            Ok(Arc::new(document))
        })?;
        Ok(next.map(|(number, document)| {
            document.map_err(|cause| match cause.is::<Interrupted>() {
                true => cause,
                false => DocumentError::new(number, None, cause).into(),
            })
        }))
    }
}

impl<S: IterableDataset<Sample: Document>> ItemIter for Documents<S> {
    type Item = Arc<S::Sample>;

    fn next(&mut self) -> Option<Result<Self::Item, BoxError>> {
        told(self.step())
    }

    fn state(&self) -> Option<Vec<u8>> {
        self.0.state(Tag::Documents)
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.0.seek(Tag::Documents, state)
    }
}

/// One document behind the other, cut into rows.
struct Concatenate<I, D> {
    documents: I,
    /// The document that has more tokens than were used.
    open: Option<Open<D>>,
    /// The row that is being put together. Between two calls, it has pieces only if a document failed, or none came for now: that is told at
    /// once.
    row: Vec<(Arc<D>, Range<usize>)>,
    /// Where that row begins.
    start: Start,
    /// Where the iterable stood when the document behind those was asked for.
    before: Option<Vec<u8>>,
    is_over: bool,
}

struct Open<D> {
    document: Arc<D>,
    used: usize,
    /// Where the iterable stood before it.
    before: Option<Vec<u8>>,
}

/// Where a row begins: where the iterable stood before its first document, how many of whose tokens were used before, and how many of the
/// documents behind it failed, and were given out as errors.
#[derive(Default)]
struct Start {
    before: Option<Vec<u8>>,
    used: usize,
    failed: u64,
}

impl<D: Document, I: ItemIter<Item = Arc<D>>> Concatenate<I, D> {
    fn new(documents: I) -> Concatenate<I, D> {
        Concatenate {
            documents,
            open: None,
            row: Vec::new(),
            start: Start::default(),
            before: None,
            is_over: false,
        }
    }

    fn next(&mut self, n: usize) -> Asked<Pieces<D>> {
        let mut space = n - self
            .row
            .iter()
            .map(|(_, tokens)| tokens.len())
            .sum::<usize>();
        while space > 0 {
            if self.open.is_none() {
                progress()?;
                match self.pull()? {
                    Some(Ok(())) => {}
                    Some(Err(error)) => {
                        self.start.failed += 1;
                        return Ok(Some(Err(error)));
                    }
                    None => break,
                }
            }
            let Some(open) = &mut self.open else { break };
            if self.row.is_empty() {
                self.start = Start {
                    before: open.before.clone(),
                    used: open.used,
                    failed: 0,
                };
            }
            let length = open.document.tokens().len();
            let end = length.min(open.used + space);
            let tokens = std::mem::replace(&mut open.used, end)..end;
            if !tokens.is_empty() {
                space -= tokens.len();
                self.row.push((Arc::clone(&open.document), tokens));
            }
            if end == length {
                self.open = None;
            }
        }
        Ok(match self.row.is_empty() {
            true => None,
            false => Some(Ok(Pieces(std::mem::take(&mut self.row)))),
        })
    }

    /// Opens the next document.
    fn pull(&mut self) -> Asked<()> {
        if self.is_over {
            return Ok(None);
        }
        // (Not again, if there was nothing for now: states are those of a run in which there was.)
        if self.before.is_none() {
            self.before = self.documents.state();
        }
        let Some(document) = ask(&mut self.documents)? else {
            self.is_over = true;
            return Ok(None);
        };
        let before = self.before.take();
        Ok(Some(document.map(|document| {
            self.open = Some(Open {
                document,
                used: 0,
                before,
            });
        })))
    }

    fn state(&self, state: Writer) -> Option<Vec<u8>> {
        let (before, used, failed) = match &self.open {
            _ if !self.row.is_empty() => {
                let Start { used, failed, .. } = self.start;
                (self.start.before.clone()?, used, failed)
            }
            Some(open) => (open.before.clone()?, open.used, 0),
            None => (self.documents.state()?, 0, 0),
        };
        let state = state.number(used as u64).number(failed);
        Some(state.inner(&before).finish())
    }

    fn seek(&mut self, mut state: Reader<'_>, n: usize) -> Result<(), BoxError> {
        let (used, failed) = (state.number()?, state.number()?);
        self.documents.seek(state.inner()?)?;
        state.end()?;
        if used > 0 {
            self.pull()?.ok_or_else(wrong)??;
            let open = self.open.as_mut().ok_or_else(wrong)?;
            let has_more = used < open.document.tokens().len() as u64;
            open.used = has_more.then_some(used as usize).ok_or_else(wrong)?;
        }
        for _ in 0..failed {
            progress()?;
            match self.next(n)? {
                Some(Err(_)) => {} // it was given out
                _ => return Err(
                    "a document that failed does not fail any more: the iterable is not what it was"
                        .into(),
                ),
            }
        }
        Ok(())
    }
}

type Found<D> = Vec<Result<Arc<D>, BoxError>>;

/// The rows of a window of documents, and the errors of those that failed, in a random order.
fn best_fit<D: Document>(
    n: u32,
    seed: u64,
    epoch: u64,
) -> impl Fn(u64, Found<D>) -> Vec<Result<Pieces<D>, BoxError>> {
    move |window, found| {
        let (mut documents, mut all) = (Vec::with_capacity(found.len()), Vec::new());
        for document in found {
            match document {
                Ok(document) => documents.push(document),
                Err(error) => all.push(Err(error)),
            }
        }
        let length = |document: &Arc<D>| document.tokens().len() as u64;
        let lengths: Vec<u64> = documents.iter().map(length).collect();
        match Rows::new(&lengths, n, PackingStrategy::BestFit) {
            Ok(rows) => all.extend((0..rows.len(n)).map(|row| {
                let pieces = rows.pieces(row, n).into_iter();
                let piece = |(Piece { document, tokens }, _)| {
                    let tokens = tokens.start as usize..tokens.end as usize;
                    (Arc::clone(&documents[document as usize]), tokens)
                };
                Ok(Pieces(pieces.map(piece).collect()))
            })),
            Err(reason) => all.push(Err(reason.into())),
        }
        shuffle(
            &mut all,
            &mut SampleRng::for_sampler(RngKey {
                seed,
                epoch,
                position: window,
            }),
        );
        all
    }
}
