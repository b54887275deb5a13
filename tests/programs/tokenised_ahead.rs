//! A tokeniser that takes its time: one loader runs it on all workers, and another packs what it gives. A run is resumed exactly, and
//! tokenises nothing twice but what was on its way.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::IntoIter;

use pinfeed::loader::{Epoch, Iterable, IterableState};
use pinfeed::iterable::{ItemIter, Shard, IterableDataset};
use pinfeed::{BoxError, DataLoader, Host, SampleRng};

const TEXTS: u64 = 400;
const AT_ONCE: usize = 16;

/// Numbered texts, from a source that can go to any of them.
struct Texts {
    tokenised: Arc<AtomicU64>,
}

struct Reading {
    next: u64,
}

impl IterableDataset for Texts {
    type Item = String;
    type Sample = Host<Vec<u16>>;
    type Iter = Reading;

    fn open(&self, _epoch: u64, _shard: Shard) -> Result<Reading, BoxError> {
        Ok(Reading { next: 0 })
    }

    fn load(&self, text: String, _: &mut SampleRng) -> Result<Host<Vec<u16>>, BoxError> {
        self.tokenised.fetch_add(1, Ordering::Relaxed);
        Ok(Host(text.bytes().map(u16::from).collect()))
    }
}

impl ItemIter for Reading {
    type Item = String;

    fn next(&mut self) -> Option<Result<String, BoxError>> {
        (self.next < TEXTS).then(|| {
            self.next += 1;
            Ok(format!("{} ", self.next).repeat(1 + self.next as usize % 9))
        })
    }

    fn state(&self) -> Option<Vec<u8>> {
        Some(self.next.to_le_bytes().to_vec())
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.next = u64::from_le_bytes(state.try_into()?);
        Ok(())
    }
}

/// What one loader gives, as a source for another: its batches are taken apart again.
struct Tokenised {
    loader: Arc<DataLoader<Vec<Vec<u16>>, Iterable>>,
}

struct Documents {
    loader: Arc<DataLoader<Vec<Vec<u16>>, Iterable>>,
    batches: Epoch<'static, Vec<Vec<u16>>, Iterable>,
    batch: IntoIter<Vec<u16>>,
    /// Where the first loader stood before this batch, and how much of it was given out.
    before: IterableState,
    given: usize,
}

impl IterableDataset for Tokenised {
    type Item = Vec<u16>;
    type Sample = Vec<u16>;
    type Iter = Documents;

    fn open(&self, epoch: u64, _shard: Shard) -> Result<Documents, BoxError> {
        let batches = self.loader.owned_epoch(epoch);
        let (loader, before) = (Arc::clone(&self.loader), batches.state());
        Ok(Documents { loader, batches, batch: Vec::new().into_iter(), before, given: 0 })
    }

    fn load(&self, document: Vec<u16>, _: &mut SampleRng) -> Result<Vec<u16>, BoxError> {
        Ok(document)
    }
}

impl ItemIter for Documents {
    type Item = Vec<u16>;

    fn next(&mut self) -> Option<Result<Vec<u16>, BoxError>> {
        loop {
            if let Some(document) = self.batch.next() {
                self.given += 1;
                return Some(Ok(document));
            }
            (self.before, self.given) = (self.batches.state(), 0);
            match self.batches.next()? {
                Ok(batch) => self.batch = batch.into_iter(),
                Err(error) => {
                    self.before = self.batches.state();
                    return Some(Err(error.into()));
                }
            }
        }
    }

    fn state(&self) -> Option<Vec<u8>> {
        Some(format!("{}/{}", self.given, self.before).into_bytes())
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let (given, before) = std::str::from_utf8(state)?.split_once('/').ok_or("no state of tokenised texts")?;
        self.before = before.parse()?;
        let epoch = self.before.epoch();
        self.batches = self.loader.owned_resume([epoch], &self.before)?.next().ok_or("no epoch is left")?;
        for _ in 0..given.parse::<usize>()? {
            self.next().ok_or("there are fewer texts than there were")??;
        }
        Ok(())
    }
}

/// Trains for so many steps. Returns the tokens that the model has seen.
fn train(checkpoint: &mut String, steps: usize, tokenised: &Arc<AtomicU64>) -> Result<Vec<u16>, Box<dyn Error>> {
    let texts = Texts { tokenised: Arc::clone(tokenised) };
    let first = DataLoader::iterable(texts).batch_size(AT_ONCE).num_workers(3).build()?;
    let documents = Tokenised { loader: Arc::new(first) };
    let loader = DataLoader::iterable(documents.shuffle(32).pack(64)?)
        .batch_size(4)
        .num_workers(1)
        .build()?;
    let state = if checkpoint.is_empty() { IterableState::default() } else { checkpoint.parse()? };
    let (mut seen, mut left) = (Vec::new(), steps);
    for epoch in loader.resume(0..1, &state)? {
        for batch in epoch {
            let batch = batch?;
            let real = batch.tokens.as_slice().iter().zip(batch.mask.as_slice()).filter(|(_, real)| **real == 1);
            seen.extend(real.map(|(token, _)| *token));
            *checkpoint = loader.state().to_string();
            left -= 1;
            if left == 0 {
                return Ok(seen);
            }
        }
    }
    Ok(seen)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let tokenised = Arc::new(AtomicU64::new(0));
    let whole = train(&mut String::new(), usize::MAX, &tokenised)?;
    assert_eq!(tokenised.swap(0, Ordering::Relaxed), TEXTS);

    let (mut seen, mut checkpoint) = (Vec::new(), String::new());
    for steps in [7, 1, 9] {
        seen.extend(train(&mut checkpoint, steps, &tokenised)?);
    }
    tokenised.store(0, Ordering::Relaxed);
    seen.extend(train(&mut checkpoint, usize::MAX, &tokenised)?);
    assert_eq!(seen, whole);
    // What comes before the buffer is not read again.
    assert!(tokenised.load(Ordering::Relaxed) < TEXTS * 3 / 4);
    Ok(())
}
