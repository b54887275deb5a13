//! Ranks whose batches several devices share, in any order: they go on from their states and lose nothing; and where others would lose or
//! repeat batches, these states are refused.

use std::collections::BTreeSet;

use proptest::prelude::*;

use pinfeed::loader::{DeviceEpoch, LoaderState, World};
use pinfeed::{DataLoader, Device, DeviceTensor, Error, Tensor, from_fn};

const BATCH: usize = 4;

#[derive(Debug, Clone, Copy)]
struct Setup {
    rank: usize,
    ranks: usize,
    batch: usize,
    in_order: bool,
    /// Which samples take longer: it changes the order in which batches come.
    slow: u64,
}

const FIRST: Setup = Setup {
    rank: 0,
    ranks: 2,
    batch: BATCH,
    in_order: false,
    slow: 0,
};

fn devices(count: usize) -> Vec<Device> {
    (0..count).map(|_| Device::cpu()).collect()
}

fn loader(setup: Setup, own: &[Device], samples: u64) -> DataLoader<Tensor<i64>> {
    let samples = from_fn(samples, move |index, _| {
        if setup.slow > 0 && index % setup.slow == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(index as i64)
    });
    DataLoader::builder(samples)
        .batch_size(setup.batch)
        .shuffle(true)
        .seed(17)
        .num_workers(2)
        .prefetch(4)
        .in_order(setup.in_order)
        .world(World::new(setup.rank, setup.ranks).unwrap())
        .pin_memory(own)
        .build()
        .unwrap()
}

fn numbers(batch: pinfeed::Result<DeviceTensor<i64>>) -> Vec<i64> {
    let batch = batch.unwrap().to_host(false).unwrap().wait().unwrap();
    batch.to_vec()
}

fn some(epoch: &mut DeviceEpoch<'_, Tensor<i64>>, steps: usize) -> Vec<i64> {
    epoch.by_ref().take(steps).flat_map(numbers).collect()
}

fn saved(state: LoaderState) -> LoaderState {
    let read: LoaderState = state.to_string().parse().unwrap();
    assert_eq!(read, state);
    read
}

/// What a rank is given in a run from a state on, so many batches on each device, and where it stops.
fn run(
    setup: Setup,
    samples: u64,
    steps: &[usize],
    from: &LoaderState,
) -> (BTreeSet<i64>, LoaderState) {
    let own = devices(steps.len());
    let loader = loader(setup, &own, samples);
    let resumed = loader.resume(0..1, from).unwrap();
    // A checkpoint before the first step.
    let before = loader.state();
    match from.to_string().starts_with("pinfeed-state-2 ") {
        true => assert_eq!(before, *from),
        false => assert_eq!(
            (before.epoch(), before.position()),
            (from.epoch(), from.position())
        ),
    }
    let mut seen = BTreeSet::new();
    let epochs = resumed.split(&own, 1).into_iter();
    let mut epochs: Vec<_> = epochs.map(|mut epochs| epochs.next().unwrap()).collect();
    for (epoch, steps) in epochs.iter_mut().zip(steps) {
        let came = some(epoch, *steps);
        let different: BTreeSet<i64> = came.iter().copied().collect();
        assert_eq!(different.len(), came.len());
        seen.extend(different);
    }
    let state = saved(loader.state());
    // A device's epoch says where its rank stands: where it stands itself, the others' batches would be lost.
    if !setup.in_order && epochs.len() > 1 {
        assert!(epochs.iter().all(|epoch| epoch.state() == state));
    }
    (seen, state)
}

/// Stopped twice, with the batches of each device wherever they were: together with the rest, each rank gets all that is its own.
#[test]
fn the_same_setup_goes_on_from_its_states() {
    let all = |rank| {
        let setup = Setup { rank, ..FIRST };
        let whole = [usize::MAX; 2];
        run(setup, 160, &whole, &loader(setup, &devices(2), 160).state()).0
    };
    let shares = [all(0), all(1)];
    assert!(shares[0].is_disjoint(&shares[1]));
    for (rank, share) in shares.iter().enumerate() {
        assert_eq!(share.len(), 80);
        let setup = Setup {
            rank,
            slow: 7,
            ..FIRST
        };
        let begin = loader(setup, &devices(2), 160).state();
        let (mut seen, once) = run(setup, 160, &[4, 3], &begin);
        let (more, twice) = run(setup, 160, &[2, 4], &once);
        seen.extend(more);
        let text = twice.to_string();
        assert!(text.starts_with("pinfeed-state-2 epoch=0 "), "{text}");
        assert!(
            text.contains(&format!(" ranks=4 rank={rank} given=0 devices=2 ")),
            "{text}"
        );
        // In order from here on: other ranks may still stand elsewhere.
        let ordered = Setup {
            in_order: true,
            ..setup
        };
        let (more, last) = run(ordered, 160, &[1, 1], &twice);
        seen.extend(more);
        assert_eq!(last.position(), twice.position() + 16);
        assert!(last.to_string().contains(" devices=2 "), "{last}");
        let (more, done) = run(setup, 160, &[usize::MAX; 2], &last);
        seen.extend(more);
        assert_eq!(seen, *share);
        assert!(done.to_string().starts_with("pinfeed-state-1 epoch=1 "));
    }
}

/// Nothing was given out, so the state is that of all ranks, however many there will be.
#[test]
fn at_an_epochs_ends_a_state_is_everybodys() {
    let own = devices(2);
    let loader = loader(FIRST, &own, 160);
    let epochs = loader.epochs(0..2).split(&own, 1);
    let alone = self::loader(Setup { ranks: 1, ..FIRST }, &devices(1), 160);
    assert!(alone.resume(0..2, &saved(loader.state())).is_ok());
    for epoch in epochs {
        epoch
            .take(1)
            .flatten()
            .for_each(|batch| drop(batch.unwrap()));
    }
    let state = saved(loader.state());
    assert_eq!((state.epoch(), state.position()), (1, 0));
    assert!(alone.resume(0..2, &state).is_ok());
}

/// A rank of two, whose two devices had some batches each, and the state in which it stopped.
fn stopped(devices: &[Device]) -> LoaderState {
    let loader = loader(FIRST, devices, 160);
    let mut epochs = loader.epoch(0).split(devices, 1);
    for epoch in &mut epochs {
        some(epoch, 5);
    }
    saved(loader.state())
}

/// As one device of four ranks, as another rank, with another batch size: these ranks would have other batches.
#[test]
fn other_ranks_are_refused() {
    for own in [1, 2] {
        let state = stopped(&devices(2));
        let refused = |setup: Setup| {
            let own = devices(own);
            let loader = loader(setup, &own, 160);
            let error = loader.resume(0..1, &state).unwrap_err();
            assert!(matches!(error, Error::State { .. }), "{error}");
            error.to_string()
        };
        for other in [
            Setup { ranks: 4, ..FIRST },
            Setup {
                rank: 1,
                ranks: 4,
                ..FIRST
            },
            Setup { ranks: 1, ..FIRST },
            Setup { batch: 8, ..FIRST },
        ] {
            let error = refused(other);
            assert!(
                (error.contains("4 samples on each of 2 devices of 2 ranks")
                    && error.contains("state_at"))
                    || error.contains("its batch size is 4 on each of 4 ranks"),
                "{error}"
            );
        }
        let error = refused(Setup { rank: 1, ..FIRST });
        assert!(error.contains("this is that of rank 0"), "{error}");
    }
}

/// The first batch of each epoch, which is an error that says what to do; and it was the only one.
fn refused(epochs: Vec<DeviceEpoch<'_, Tensor<i64>>>) -> String {
    let mut said = BTreeSet::new();
    for mut epoch in epochs {
        assert_eq!(epoch.len(), 1);
        let error = epoch.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::State { .. }), "{error}");
        said.insert(error.to_string());
        assert!(epoch.next().is_none());
    }
    assert_eq!(said.len(), 1);
    let said = said.pop_first().unwrap();
    assert!(
        said.contains("in_order(false)") && said.contains("state_at"),
        "{said}"
    );
    said
}

/// Shared by other devices than before, or by none: they would get batches of other ranks. The state stays what it was.
#[test]
fn another_number_of_devices_is_refused() {
    let own = devices(3);
    let state = stopped(&own[..2]);
    let loader = loader(FIRST, &own, 160);
    for count in [1, 3] {
        let epochs = loader.resume(0..2, &state).unwrap();
        let epochs = epochs.split(&own[..count], 2).into_iter();
        let mut epochs: Vec<_> = epochs.collect();
        let first = epochs.iter_mut().map(|epochs| epochs.next().unwrap());
        let said = refused(first.collect());
        let now = ["one device", "3 devices"][usize::from(count > 1)];
        assert!(said.contains("went to 2 devices"), "{said}");
        assert!(said.contains(&format!("are to go to {now}")), "{said}");
        assert_eq!(loader.state(), state);
        // The next epoch is anybody's.
        for epochs in &mut epochs {
            assert!(epochs.next().unwrap().all(|batch| batch.is_ok()));
        }
    }
    let mut epochs = loader.resume(0..1, &state).unwrap();
    let mut whole = epochs.next().unwrap();
    assert!(matches!(whole.next(), Some(Err(Error::State { .. }))));
    assert!(whole.next().is_none());
    drop(whole);
    assert_eq!(loader.state(), state);
    // As many again: it goes on, also if each epoch is split by itself.
    let mut epochs = loader.resume(0..1, &state).unwrap();
    let shares = epochs.next().unwrap().split(&own[..2], 1);
    assert_eq!(loader.state(), state);
    assert!(shares.into_iter().flatten().all(|batch| batch.is_ok()));
    let epochs = loader.resume(0..1, &state).unwrap().split(&own[1..], 2);
    assert!(
        epochs
            .into_iter()
            .flatten()
            .flatten()
            .all(|batch| batch.is_ok())
    );
}

/// A rank whose batches went to one device has a state with gaps, or an epoch that is half done: devices that share what is left of it
/// would get batches of other ranks, and write states that claim to be everybody's.
#[test]
fn what_is_left_of_one_device_is_not_shared() {
    let own = devices(2);
    for in_order in [false, true] {
        let state = {
            let loader = loader(FIRST, &own, 160);
            let mut epoch = loader.epoch(0).prefetch_to_device(&own[0], 1);
            some(&mut epoch, 5);
            saved(loader.state())
        };
        let loader = loader(Setup { in_order, ..FIRST }, &own, 160);
        let epochs = loader.resume(0..1, &state).unwrap().split(&own, 1);
        let first = epochs.into_iter().flatten();
        let said = refused(first.collect());
        assert!(said.contains("went to one device"), "{said}");
        assert_eq!(loader.state(), state); // with what came before its turn
        // For the one device it goes on, and so it does for one that it is split among.
        let rest = loader.resume(0..1, &state).unwrap().split(&own[1..], 1);
        assert_eq!(rest.into_iter().flatten().flatten().count(), 20 - 5);
    }
    let loader = loader(FIRST, &own, 160);
    let mut epoch = loader.epoch(0);
    epoch.next().unwrap().unwrap();
    refused(epoch.split(&own, 1));
}

/// A single rank has no others to agree with.
#[test]
fn a_rank_that_is_alone_may_change_its_devices() {
    let alone = Setup {
        ranks: 1,
        slow: 5,
        ..FIRST
    };
    let own = devices(3);
    let mut seen = BTreeSet::new();
    let mut state = LoaderState::default();
    for count in [1, 2, 3, 1, 2] {
        let loader = loader(alone, &own, 160);
        let epochs = loader.resume(0..1, &state).unwrap().split(&own[..count], 1);
        for mut epochs in epochs {
            seen.extend(some(&mut epochs.next().unwrap(), 3));
        }
        state = saved(loader.state());
    }
    let loader = loader(alone, &own, 160);
    for epoch in loader.resume(0..1, &state).unwrap() {
        seen.extend(epoch.flat_map(|batch| batch.unwrap().to_vec()));
    }
    assert!(seen.into_iter().eq(0..160));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    /// Stopped anywhere, any number of times, each rank and device elsewhere: the same setup gets every sample; and so does any other
    /// from the smallest position of the last states.
    #[test]
    fn nothing_is_lost(
        samples in 1u64..200, ranks in 1usize..4, count in 1usize..4, slow in 0u64..9,
        stops in prop::collection::vec((any::<bool>(), prop::collection::vec(0usize..9, 3)), 1..4)
    ) {
        let mut seen = BTreeSet::new();
        let mut states = Vec::new();
        for rank in 0..ranks {
            let mut state = loader(Setup { rank, ranks, ..FIRST }, &devices(count), samples).state();
            for (in_order, steps) in &stops {
                let setup = Setup { rank, ranks, in_order: *in_order, slow, ..FIRST };
                let (more, next) = run(setup, samples, &steps[..count], &state);
                seen.extend(more);
                state = next;
                if state.epoch() > 0 {
                    break;
                }
            }
            states.push(state);
        }
        let position = states.iter().map(|state| match state.epoch() {
            0 => state.position(),
            _ => samples,
        });
        let smallest = position.min().unwrap();
        let mut others = seen.clone();
        for (rank, state) in states.iter().enumerate() {
            if state.epoch() == 0 {
                let setup = Setup { rank, ranks, ..FIRST };
                seen.extend(run(setup, samples, &[usize::MAX; 3][..count], state).0);
            }
        }
        prop_assert!(seen.into_iter().eq(0..samples as i64));
        for rank in 0..2 {
            let setup = Setup { rank, ranks: 2, batch: 3, ..FIRST };
            let at = loader(setup, &devices(1), samples).state_at(0, smallest);
            if at.epoch() == 0 {
                others.extend(run(setup, samples, &[usize::MAX], &at).0);
            }
        }
        prop_assert!(others.into_iter().eq(0..samples as i64));
    }
}
