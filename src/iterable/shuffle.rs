//! Shuffling by windows.

use std::collections::VecDeque;
use std::fmt;

use super::ask::{Asked, NoItem, ask, settled, told};
use super::state::{Reader, Tag, Writer, fingerprint, wrong};
use super::windows::{OTHERS, Stand, Windows, shuffle};
use super::{ItemIter, IterableDataset, Left, Shard, progress, scramble};
use crate::error::BoxError;
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
            let State { dealt, stand } = State::read(state)?;
            if stand.size != self.window as u64 {
                return Err(wrong());
            }
            windows.extend(dealt);
            behind.push(match stand.window.checked_sub(1) {
                None => rank.of_child(0, Some(stand.inner)),
                Some(window) => {
                    let (count, end) = stand.end.ok_or(OLD)?;
                    windows.push(Dealt {
                        rank: rank.shard().rank(),
                        ranks: rank.shard().ranks(),
                        window,
                        given: stand.given,
                        inner: stand.inner,
                        count,
                        behind: end.clone(),
                    });
                    rank.of_child(0, Some(end))
                }
            });
        }
        let children: Vec<Shard> = to.iter().map(|shard| shard.of_child(0)).collect();
        let states = self.source.hand_over(epoch, &behind, &children)?;
        windows.retain(|window| window.given < window.count);
        // (By where it lies, too: windows are numbered from 0 again with each hand-over, so two may have one number.)
        windows.sort_by_cached_key(|window| {
            let left = window.count - window.given;
            let number = (window.ranks, window.rank, window.window);
            let place = (window.inner.clone(), window.behind.clone());
            (std::cmp::Reverse(left), number, place)
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
        let size = self.window as u64;
        let state = |(inner, (_, dealt))| State::beginning(size, inner, dealt).write();
        Ok(states.into_iter().zip(dealt).map(state).collect())
    }
}

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
    fn read(&self, dealt: &Dealt) -> Result<Vec<Result<I::Item, BoxError>>, NoItem> {
        // What cannot be read as it was ends the run here, as with a state that it cannot go to: it is not known which samples are left.
        let refused = NoItem::refused;
        if dealt.rank >= dealt.ranks {
            return Err(refused(wrong()));
        }
        let shard = Shard::new(dealt.rank, dealt.ranks, self.shard.seed());
        let opened = settled((self.open)(shard))?;
        let mut inner = opened.map_err(refused)?;
        progress()?;
        settled(inner.seek(&dealt.inner))?.map_err(refused)?;
        let mut items = Vec::new();
        while items.len() < self.size {
            progress()?;
            match ask(&mut inner)? {
                Some(item) => items.push(item),
                None => break,
            }
        }
        let is_same = items.len() as u64 == dealt.count;
        let left = items.len().checked_sub(dealt.given as usize);
        let left = left.filter(|_| is_same && inner.state().as_ref() == Some(&dealt.behind));
        let left = left.ok_or_else(|| refused(OTHERS.into()))?;
        let order = Order::new(self.order.epoch, shard);
        let mut items = order.arrange(dealt.window, items);
        items.truncate(left); // (the last one comes first)
        Ok(items)
    }

    /// The next item of the windows that were dealt to this rank. One that has none left goes at once, so that no state has it.
    fn next_dealt(&mut self) -> Asked<I::Item> {
        while let Some(first) = self.dealt.front() {
            let mut items = match self.items.take() {
                Some(items) => items,
                None => self.read(first)?,
            };
            let item = items.pop();
            match self.dealt.front_mut() {
                Some(first) if !items.is_empty() => {
                    first.given += 1;
                    self.items = Some(items);
                }
                _ => drop(self.dealt.pop_front()),
            }
            if item.is_some() {
                return Ok(item);
            }
            progress()?;
        }
        Ok(None)
    }

    fn step(&mut self) -> Asked<I::Item> {
        if let Some(item) = self.next_dealt()? {
            return Ok(Some(item));
        }
        let order = self.order;
        self.windows
            .next(|window, items| order.arrange(window, items))
    }
}

impl<I: ItemIter> ItemIter for ShuffleIter<I>
where
    I::Item: Send,
{
    type Item = I::Item;

    fn next(&mut self) -> Option<Result<I::Item, BoxError>> {
        told(self.step())
    }

    fn state(&self) -> Option<Vec<u8>> {
        let windows = self.windows.state(Writer::new(Tag::Shuffle))?;
        Some(State::write_of(&self.dealt, &windows))
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let State { dealt, stand } = State::read(state)?;
        self.dealt = dealt;
        self.items = None;
        let order = self.order;
        self.windows
            .seek(stand, |window, items| order.arrange(window, items))
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
    stand: Stand,
}

impl State {
    /// That of a rank whose source goes on at `inner`, before its first window.
    fn beginning(size: u64, inner: Vec<u8>, dealt: VecDeque<Dealt>) -> State {
        let stand = Stand {
            size,
            window: 0,
            given: 0,
            inner,
            end: None,
        };
        State { dealt, stand }
    }

    fn write(self) -> Vec<u8> {
        State::write_of(&self.dealt, &self.stand.write(Writer::new(Tag::Shuffle)))
    }

    fn write_of(dealt: &VecDeque<Dealt>, windows: &[u8]) -> Vec<u8> {
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
        state.inner(windows).finish()
    }

    fn read(state: &[u8]) -> Result<State, BoxError> {
        let (mut dealt, mut windows, mut end) = (VecDeque::new(), state, None);
        // (An earlier version had the windows' state only, and another one what is behind them here.)
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
            windows = state.inner()?;
            if !state.is_empty() {
                end = Some((state.number()?, state.inner()?.to_vec()));
            }
            state.end()?;
        }
        let mut stand = Stand::read(Reader::new(Tag::Shuffle, windows)?)?;
        stand.end = stand.end.or(end.filter(|_| stand.window > 0));
        Ok(State { dealt, stand })
    }
}
