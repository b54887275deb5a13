//! That what came in no item's place is passed on: every iterable, and every chain of two of them, of a source that has nothing for a
//! while at each of its places, against the same of a source that always has.

use super::*;
use crate::error::Again;
use crate::rng::RngKey;
use crate::sync::{AtomicU64, Ordering};

/// 0, 1, 2, ..; before item `at`, it has nothing for now, so many times in all.
#[derive(Clone)]
struct Flaky {
    at: u64,
    times: Arc<AtomicU64>,
}

const LEN: u64 = 23;

struct Flickering {
    source: Flaky,
    first: u64,
    at: u64,
}

impl IterableDataset for Flaky {
    type Item = i64;
    type Sample = i64;
    type Iter = Flickering;

    fn open(&self, epoch: u64, _: Shard) -> Result<Flickering, BoxError> {
        Ok(Flickering {
            source: self.clone(),
            first: 1_000 * epoch,
            at: 0,
        })
    }

    /// One of 5 is bad itself. What others draw is in the sample.
    fn load(&self, item: i64, rng: &mut SampleRng) -> Result<i64, BoxError> {
        match item % 5 {
            1 => Err("it is bad".into()),
            _ => Ok(item + 10_000 * rng.range(0..1_000i64)),
        }
    }
}

impl ItemIter for Flickering {
    type Item = i64;

    fn next(&mut self) -> Option<Result<i64, BoxError>> {
        let times = self.source.times.load(Ordering::Relaxed);
        if self.at == self.source.at && times > 0 {
            self.source.times.store(times - 1, Ordering::Relaxed);
            return Some(Err(Again("503".into()).into()));
        }
        if self.at == LEN {
            return None;
        }
        self.at += 1;
        // (One is an error in an item's place.)
        match self.at {
            8 => Some(Err("404".into())),
            at => Some(Ok((self.first + at - 1) as i64)),
        }
    }

    fn state(&self) -> Option<Vec<u8>> {
        Some(vec![self.at as u8])
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.at = u64::from(*state.first().ok_or("no state")?);
        Ok(())
    }
}

/// What an epoch gives: samples as text, in order, and the state behind each. And the states where there was nothing for a while, with how
/// much had been given.
#[derive(Default)]
struct Given {
    samples: Vec<String>,
    states: Vec<Vec<u8>>,
    paused: Vec<(usize, Vec<u8>)>,
}

const EPOCH: u64 = 2;

/// Takes an epoch from a state, behind so many samples, or from its beginning: as the loader does.
fn epoch<S: IterableDataset<Sample = i64>>(source: &S, from: Option<(usize, &[u8])>) -> Given {
    let mut refused = 0;
    let mut items = loop {
        let mut items = source.open(EPOCH, Shard::new(1, 2, 17)).unwrap();
        let Some((_, state)) = from else { break items };
        match items.seek(state) {
            Ok(()) => break items,
            Err(error) if error.is::<Again>() && refused < 10 => refused += 1,
            Err(error) => panic!("{error}"),
        }
    };
    let before = from.map_or(0, |(before, _)| before);
    let mut given = Given::default();
    while let Some(item) = items.next() {
        let sample = item.and_then(|item| {
            let position = (before + given.samples.len()) as u64;
            let mut rng = SampleRng::for_sample(RngKey {
                seed: 3,
                epoch: EPOCH,
                position,
            });
            source.load(item, &mut rng)
        });
        let state = items.state().unwrap();
        match sample {
            Err(error) if error.is::<Again>() => given.paused.push((given.samples.len(), state)),
            sample => {
                given.samples.push(format!("{sample:?}"));
                given.states.push(state);
            }
        }
        assert!(given.samples.len() < 1_000 && given.paused.len() < 10);
    }
    given
}

/// A source that has nothing for a while, at each place, once and several times, gives the same, in the same states, as one that always has
/// something; and goes on from any state, also where it has nothing while it goes there.
fn check<S: IterableDataset<Sample = i64>>(what: &str, make: impl Fn(Flaky) -> S) {
    let flaky = |at, times| {
        let times = Arc::new(AtomicU64::new(times));
        make(Flaky { at, times })
    };
    let expected = epoch(&flaky(0, 0), None);
    assert!(
        expected.samples.len() > 3,
        "{what}: {}",
        expected.samples.len()
    );
    for at in 0..=LEN {
        let times = 1 + at % 3;
        let given = epoch(&flaky(at, times), None);
        let case = format!("{what}: {times} times before item {at}");
        assert_eq!(given.samples, expected.samples, "{case}");
        assert!(given.states == expected.states, "{case}: other states");
        for (before, state) in &given.paused {
            let rest = epoch(&flaky(0, 0), Some((*before, state)));
            assert_eq!(
                rest.samples,
                expected.samples[*before..],
                "{case}: from there"
            );
        }
    }
    for (before, state) in (1..).zip(&expected.states).step_by(5) {
        for at in (0..=LEN).step_by(4) {
            let rest = epoch(&flaky(at, 2), Some((before, state)));
            let case = format!("{what}: before item {at}, resumed behind {before}");
            assert_eq!(rest.samples, expected.samples[before..], "{case}");
            assert!(
                rest.states == expected.states[before..],
                "{case}: other states"
            );
        }
    }
}

macro_rules! adapters {
    ($($(#[$meta:meta])* $name:ident($source:ident) = $make:expr;)*) => {
        $(fn $name<S: IterableDataset<Sample = i64>>($source: S) -> impl IterableDataset<Sample = i64> {
            $make
        })*

        #[test]
        fn each_passes_on_what_is_no_item() {
            $(check(stringify!($name), $name);)*
        }

        adapters!(pairs [$($name)*] [$($name)*]);
    };
    (pairs [$($outer:ident)*] $inner:tt) => { $(adapters!(around $outer $inner);)* };
    (around $outer:ident [$($inner:ident)*]) => {
        mod $outer {
            #[test]
            fn around_each_passes_on_what_is_no_item() {
                $(super::check(
                    concat!(stringify!($outer), " of ", stringify!($inner)),
                    |flaky| super::$outer(super::$inner(flaky)),
                );)*
            }
        }
    };
}

adapters! {
    mapped(source) = source.map(|number, rng| Ok(number + rng.range(0..9i64)));
    taken(source) = source.take(15);
    skipped(source) = source.skip(3);
    chained(source) = {
        let source = Arc::new(source);
        Arc::clone(&source).chain(source)
    };
    repeated(source) = source.repeat_n(2);
    mixed(source) = {
        let source = Arc::new(source);
        mix([(Arc::clone(&source), 2.0), (source, 1.0)]).unwrap()
    };
    filtered(source) = source.filter(|number, rng| Ok(number % 4 != 2 && rng.bool(0.8)));
    cut(source) = source.flat_map(|number, rng| {
        let drawn = rng.range(0..3i64);
        let part = move |part| match part {
            1 => Err("a part is bad".into()),
            part => Ok(number + part + drawn),
        };
        Ok((0..1 + number % 3).map(part))
    });
    shuffled(source) = source.shuffle(5);
    bucketed(source) = {
        let buckets = source.bucket_by_length(3, |number| *number as usize % 7);
        buckets.unwrap().with_buffer(2)
    };
    concatenated(source) = row_sums(documents(source).pack(7).unwrap());
    packed(source) = row_sums(documents(source).pack(7).unwrap().with_best_fit(4));
}

fn documents<S: IterableDataset<Sample = i64>>(
    source: S,
) -> impl IterableDataset<Sample = Vec<u32>> {
    source.map(|number, _| Ok(vec![number as u32 % 9_973; 1 + (number % 5) as usize]))
}

fn row_sums<S>(rows: S) -> impl IterableDataset<Sample = i64>
where
    S: IterableDataset<Sample = crate::tensor::PackedRow<u32>>,
{
    rows.map(|row, _| {
        Ok((1..)
            .zip(&row.tokens)
            .map(|(at, token)| at * i64::from(*token))
            .sum())
    })
}

/// What a window had, and where it ended, is compared when a run goes on within it: whatever makes windows.
#[test]
fn a_window_that_is_another_one_is_refused() {
    struct Longer(i64);

    impl IterableDataset for Longer {
        type Item = i64;
        type Sample = i64;
        type Iter = Numbers;

        fn open(&self, _: u64, _: Shard) -> Result<Numbers, BoxError> {
            Ok(Numbers(0, self.0))
        }

        fn load(&self, item: i64, _: &mut SampleRng) -> Result<i64, BoxError> {
            Ok(item)
        }
    }

    /// 0, 1, .. 5, of which one is missing at first.
    struct Numbers(i64, i64);

    impl ItemIter for Numbers {
        type Item = i64;

        fn next(&mut self) -> Option<Result<i64, BoxError>> {
            self.0 += 1 + i64::from(self.0 + 1 == self.1);
            (self.0 <= 6).then_some(Ok(self.0 - 1))
        }

        fn state(&self) -> Option<Vec<u8>> {
            Some(vec![self.0 as u8])
        }

        fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
            self.0 = i64::from(state[0]);
            Ok(())
        }
    }

    fn refuses<S: IterableDataset>(make: impl Fn(Longer) -> S) {
        let [mut before, mut same, mut after] =
            [3, 3, 100].map(|missing| make(Longer(missing)).open(0, Shard::new(0, 1, 7)).unwrap());
        before.next().unwrap().map(drop).unwrap();
        let state = before.state().unwrap();
        same.seek(&state).unwrap();
        let error = after.seek(&state).unwrap_err().to_string();
        assert!(error.contains("go on from an earlier state"), "{error}");
    }

    refuses(|source| source.shuffle(4));
    refuses(|source| source.bucket_by_length(2, |_| 1).unwrap().with_buffer(2));
    refuses(|source| {
        let documents = source.map(|number, _| Ok(vec![number as u32; 2]));
        documents.pack(4).unwrap().with_best_fit(4)
    });
}
