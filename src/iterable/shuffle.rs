//! Shuffling by windows.

use std::collections::VecDeque;
use std::fmt;

use super::state::{Reader, Tag, Writer, fingerprint, wrong};
use super::windows::{Windows, shuffle};
use super::{ItemIter, IterableDataset, Left, Shard, progress, scramble};
use crate::error::{Again, BoxError};
use crate::rng::{RngKey, SampleRng};
use crate::sync::Arc;

/// A source whose items come in a random order within windows: [`IterableDataset::shuffle`] makes it.
#[derive(Debug)]
pub struct Shuffle<S> {
    source: Arc<S>,
    window: usize,
}

impl<S> Clone for Shuffle<S> {
    fn clone(&self) -> Shuffle<S> {
        Shuffle {
            source: Arc::clone(&self.source),
            window: self.window,
        }
    }
}

impl<S> Shuffle<S> {
    pub(super) fn new(source: S, buffer_size: usize) -> Shuffle<S> {
        Shuffle {
            source: Arc::new(source),
            window: buffer_size.max(1),
        }
    }
}

impl<S: IterableDataset> IterableDataset for Shuffle<S> {
    type Item = S::Item;
    type Sample = S::Sample;
    type Iter = ShuffleIter<S::Iter>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        let inner = self.source.open(epoch, shard.of_child(0))?;
        let source = Arc::clone(&self.source);
        Ok(ShuffleIter {
            windows: Windows::new(inner, self.window),
            size: self.window,
            order: Order::new(epoch, shard),
            dealt: VecDeque::new(),
            items: None,
            open: Box::new(move |shard| source.open(epoch, shard.of_child(0))),
            shard,
        })
    }

    fn load(&self, item: S::Item, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        self.source.load(item, rng)
    }

    fn fingerprint(&self) -> u32 {
        let inner = u64::from(self.source.fingerprint());
        fingerprint(Tag::Shuffle, [self.window as u64, inner])
    }

    /// Hands over where the source stood behind the windows that are given out, and deals these windows.
    fn hand_over(&self, epoch: u64, left: &[Left], to: &[Shard]) -> Result<Vec<Vec<u8>>, BoxError> {
        let (mut windows, mut behind) = (Vec::new(), Vec::new());
        for rank in left {
            let Some(state) = rank.state() else {
                behind.push(rank.of_child(0, None));
                continue;
            };
            let state = State::read(state)?;
            if state.size != self.window as u64 {
                return Err(wrong());
            }
            windows.extend(state.dealt);
            behind.push(match state.window {
                0 => rank.of_child(0, Some(state.inner)),
                window => {
                    windows.push(Dealt {
                        rank: rank.shard().rank(),
                        ranks: rank.shard().ranks(),
                        window: window - 1,
                        given: state.given,
                        inner: state.inner,
                        count: state.count,
                        behind: state.behind.clone().ok_or(OLD)?,
                    });
                    rank.of_child(0, state.behind)
                }
            });
        }
        let children: Vec<Shard> = to.iter().map(|shard| shard.of_child(0)).collect();
        let states = self.source.hand_over(epoch, &behind, &children)?;
        windows.retain(|window| window.given < window.count);
        windows.sort_by_key(|window| {
            let left = window.count - window.given;
            (
                std::cmp::Reverse(left),
                window.ranks,
                window.rank,
                window.window,
            )
        });
        let mut dealt: Vec<(u64, VecDeque<Dealt>)> =
            to.iter().map(|_| Default::default()).collect();
        for window in windows {
            let least = dealt.iter_mut().min_by_key(|(items, _)| *items);
            if let Some((items, windows)) = least {
                *items += window.count - window.given;
                windows.push_back(window);
            }
        }
        let state = |(inner, (_, dealt))| State::of(self.window as u64, inner, dealt).write();
        Ok(states.into_iter().zip(dealt).map(state).collect())
    }
}

const OTHERS: &str = "what the source gives is not what it gave before the interruption: perhaps a shard could not be read then that can be now, or the \
                      other way round. So it is not known which items of a window were given out: go on from an earlier state, or from the end of the epoch";

const OLD: &str = "the state is of an earlier version, which did not say where a window ends: go on with as many ranks as before";

/// The open iterator of [`Shuffle`].
pub struct ShuffleIter<I: ItemIter> {
    windows: Windows<I, I::Item>,
    size: usize,
    order: Order,
    /// Windows of other ranks that come before those of this one.
    dealt: VecDeque<Dealt>,
    /// What is left of the first of them, the next one last. `None`: it was not read again yet.
    items: Option<Vec<Result<I::Item, BoxError>>>,
    open: Box<dyn Fn(Shard) -> Result<I, BoxError> + Send + Sync>,
    shard: Shard,
}

/// A window of another rank of the run before, of which some items were given out there.
#[derive(Debug, Clone)]
struct Dealt {
    rank: u64,
    ranks: u64,
    window: u64,
    given: u64,
    /// How many items it had.
    count: u64,
    /// Where that rank's source stood before it, and behind it.
    inner: Vec<u8>,
    behind: Vec<u8>,
}

/// The order of the windows of a rank.
#[derive(Debug, Clone, Copy)]
struct Order {
    seed: u64,
    epoch: u64,
}

impl Order {
    /// Each rank has an order of its own, and another seed than its samples.
    fn new(epoch: u64, shard: Shard) -> Order {
        Order {
            seed: scramble(scramble(shard.seed()) ^ shard.rank()),
            epoch,
        }
    }

    fn arrange<T>(self, window: u64, mut items: Vec<T>) -> Vec<T> {
        let key = RngKey {
            seed: self.seed,
            epoch: self.epoch,
            position: window,
        };
        shuffle(&mut items, &mut SampleRng::for_sampler(key));
        items
    }
}

impl<I: ItemIter> ShuffleIter<I> {
    /// Reads the window again, and leaves out what was given out of it.
    fn read(&self, dealt: &Dealt) -> Result<Vec<Result<I::Item, BoxError>>, BoxError> {
        if dealt.rank >= dealt.ranks {
            return Err(wrong());
        }
        let shard = Shard::new(dealt.rank, dealt.ranks, self.shard.seed());
        let mut inner = (self.open)(shard)?;
        progress()?;
        inner.seek(&dealt.inner)?;
        let mut items = Vec::new();
        while items.len() < self.size {
            progress()?;
            match inner.next() {
                Some(Err(error)) if error.is::<Again>() => return Err(error),
                Some(item) => items.push(item),
                None => break,
            }
        }
        let is_same = items.len() as u64 == dealt.count;
        if !is_same || inner.state().as_ref() != Some(&dealt.behind) {
            return Err(OTHERS.into());
        }
        let left = items
            .len()
            .checked_sub(dealt.given as usize)
            .ok_or_else(wrong)?;
        let order = Order::new(self.order.epoch, shard);
        let mut items = order.arrange(dealt.window, items);
        items.truncate(left); // (the last one comes first)
        Ok(items)
    }

    /// The next item of the windows that were dealt to this rank.
    fn next_dealt(&mut self) -> Option<Result<I::Item, BoxError>> {
        while let Some(first) = self.dealt.front() {
            let items = match self.items.take() {
                Some(items) => Ok(items),
                None => self.read(first),
            };
            let failed = match items {
                Ok(mut items) => match items.pop() {
                    Some(item) => {
                        self.items = Some(items);
                        if let Some(first) = self.dealt.front_mut() {
                            first.given += 1;
                        }
                        return Some(item);
                    }
                    None => progress().err().map(BoxError::from),
                },
                Err(error) => Some(error),
            };
            // (What may be read later is read again then.)
            if !failed.as_ref().is_some_and(|error| error.is::<Again>()) {
                self.dealt.pop_front();
            }
            if let Some(error) = failed {
                return Some(Err(error));
            }
        }
        None
    }
}

impl<I: ItemIter> ItemIter for ShuffleIter<I>
where
    I::Item: Send,
{
    type Item = I::Item;

    fn next(&mut self) -> Option<Result<I::Item, BoxError>> {
        let order = self.order;
        self.next_dealt().or_else(|| {
            self.windows
                .next(|window, items| order.arrange(window, items))
        })
    }

    fn state(&self) -> Option<Vec<u8>> {
        let windows = self.windows.state(Writer::new(Tag::Shuffle))?;
        let behind = self.windows.behind()?;
        let count = self.windows.count();
        Some(State::write_of(&self.dealt, &windows, count, &behind))
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let State {
            dealt,
            windows,
            window,
            count,
            behind,
            ..
        } = State::read(state)?;
        self.dealt = dealt;
        self.items = None;
        let order = self.order;
        let windows = Reader::new(Tag::Shuffle, &windows)?;
        self.windows
            .seek(windows, |window, items| order.arrange(window, items))?;
        let is_same = self.windows.count() == count && self.windows.behind() == behind;
        match window > 0 && behind.is_some() && !is_same {
            true => Err(OTHERS.into()),
            false => Ok(()),
        }
    }
}

impl<I: ItemIter> fmt::Debug for ShuffleIter<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShuffleIter")
            .field("size", &self.size)
            .field("dealt", &self.dealt)
            .finish_non_exhaustive()
    }
}

/// A state, taken apart.
struct State {
    dealt: VecDeque<Dealt>,
    /// That of the windows.
    windows: Vec<u8>,
    /// What that says: where the source stood before the window, which one it is (0 before the first), how much of it was given out.
    size: u64,
    window: u64,
    given: u64,
    inner: Vec<u8>,
    /// How many items the window had, and where the source stood behind it.
    count: u64,
    behind: Option<Vec<u8>>,
}

impl State {
    /// The beginning of a rank whose source goes on at `inner`.
    fn of(size: u64, inner: Vec<u8>, dealt: VecDeque<Dealt>) -> State {
        let windows = Writer::new(Tag::Shuffle).number(size).number(0).number(0);
        State {
            dealt,
            windows: windows.inner(&inner).finish(),
            size,
            window: 0,
            given: 0,
            count: 0,
            behind: Some(inner.clone()),
            inner,
        }
    }

    fn write(self) -> Vec<u8> {
        let behind = self.behind.unwrap_or_default();
        State::write_of(&self.dealt, &self.windows, self.count, &behind)
    }

    fn write_of(dealt: &VecDeque<Dealt>, windows: &[u8], count: u64, behind: &[u8]) -> Vec<u8> {
        let mut state = Writer::new(Tag::Shuffled).number(dealt.len() as u64);
        for Dealt {
            rank,
            ranks,
            window,
            given,
            count,
            inner,
            behind,
        } in dealt
        {
            let numbers = [rank, ranks, window, given, count].map(|number| *number);
            state = numbers.into_iter().fold(state, Writer::number);
            state = state.inner(inner).inner(behind);
        }
        state.inner(windows).number(count).inner(behind).finish()
    }

    fn read(state: &[u8]) -> Result<State, BoxError> {
        let (mut dealt, mut windows) = (VecDeque::new(), state.to_vec());
        let (mut count, mut behind) = (0, None);
        // (An earlier version had the windows' state only.)
        if let Ok(mut state) = Reader::new(Tag::Shuffled, state) {
            for _ in 0..state.number()? {
                dealt.push_back(Dealt {
                    rank: state.number()?,
                    ranks: state.number()?,
                    window: state.number()?,
                    given: state.number()?,
                    count: state.number()?,
                    inner: state.inner()?.to_vec(),
                    behind: state.inner()?.to_vec(),
                });
            }
            windows = state.inner()?.to_vec();
            count = state.number()?;
            behind = Some(state.inner()?.to_vec());
            state.end()?;
        }
        let mut within = Reader::new(Tag::Shuffle, &windows)?;
        let (size, window, given) = (within.number()?, within.number()?, within.number()?);
        let inner = within.inner()?.to_vec();
        within.end()?;
        Ok(State {
            dealt,
            windows,
            size,
            window,
            given,
            inner,
            count,
            behind,
        })
    }
}
