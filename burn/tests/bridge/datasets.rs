//! Data sets both ways.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataset::transform::{MapperDataset, PartialDataset, ShuffledDataset};
use burn::data::dataset::{Dataset as BurnDataset, DatasetError, InMemDataset};
use burn::tensor::TensorData;
use pinfeed::{DataLoader, Dataset, SampleRng, from_fn};
use pinfeed_burn::{Error, FromBurn, ToBurn, from_data};

/// A data set of burn's that counts its calls, and fails now and then.
#[derive(Default)]
struct Counting {
    calls: AtomicUsize,
    bad: Option<usize>,
}

impl BurnDataset<i64> for Counting {
    fn get(&self, index: usize) -> Result<i64, DatasetError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match self.bad == Some(index) {
            true => Err(DatasetError::new(std::io::Error::other("the disk is gone"))),
            false => Ok(index as i64),
        }
    }

    fn get_many(&self, indexes: Vec<usize>) -> Result<Vec<i64>, DatasetError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let bad = self.bad.is_some_and(|bad| indexes.contains(&bad));
        match bad {
            true => Err(DatasetError::new(std::io::Error::other("the query failed"))),
            false => Ok(indexes.into_iter().map(|index| index as i64).collect()),
        }
    }

    fn len(&self) -> usize {
        100
    }
}

#[test]
fn burns_items_are_samples() {
    let data = FromBurn::new(InMemDataset::new((0..100i64).collect()));
    let loader = DataLoader::builder(data)
        .batch_size(30)
        .num_workers(2)
        .build()
        .unwrap();
    let numbers: Vec<_> = (loader.epoch(0).map(Result::unwrap))
        .flat_map(|batch| batch.to_vec())
        .collect();
    assert!(numbers.into_iter().eq(0..100));
}

/// Burn's transforms stay what they are, under this library's order, workers and augmentation.
#[test]
fn burns_transforms_stay() {
    let halves = MapperDataset::new(
        PartialDataset::new(InMemDataset::new((0..100i64).collect()), 10, 20),
        Half,
    );
    let data = FromBurn::<_, f32>::new(halves).map(|half, rng| Ok((half, rng.f32())));
    let loader = DataLoader::builder(data).batch_size(10).build().unwrap();
    let (halves, noise) = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(halves.as_slice()[..3], [5.0, 5.5, 6.0]);
    let (_, later) = loader.epoch(1).next().unwrap().unwrap();
    assert_ne!(noise, later);
}

struct Half;

impl burn::data::dataset::transform::Mapper<i64, f32> for Half {
    fn map(&self, number: &i64) -> f32 {
        *number as f32 / 2.0
    }
}

#[test]
fn several_items_take_one_call() {
    let data = std::sync::Arc::new(FromBurn::new(Counting::default()).with_at_once(50));
    let loader = DataLoader::builder(std::sync::Arc::clone(&data))
        .batch_size(50)
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).filter(Result::is_ok).count(), 2);
    assert_eq!(data.dataset().calls.load(Ordering::Relaxed), 2);
}

#[test]
fn an_error_of_burns_names_its_item() {
    for at_once in [1, 10] {
        let counting = Counting {
            bad: Some(17),
            ..Counting::default()
        };
        let data = FromBurn::new(counting).with_at_once(at_once);
        let loader = DataLoader::builder(data).batch_size(10).build().unwrap();
        let batches: Vec<_> = loader.epoch(0).collect();
        assert_eq!(batches.iter().filter(|batch| batch.is_err()).count(), 1);
        let error = batches[1].as_ref().unwrap_err().to_string();
        assert!(
            error.contains("sample 17") && error.contains("the disk is gone"),
            "{error}"
        );
    }
}

/// An index that burn's data set has not: it panics, as burn's do, and the panic is that batch's error.
#[test]
fn a_panic_in_burns_data_set_is_its_batchs_error() {
    struct Panics;

    impl BurnDataset<i64> for Panics {
        fn get(&self, index: usize) -> Result<i64, DatasetError> {
            if index == 3 {
                watch::provoked("a bug in get");
            }
            Ok(index as i64)
        }

        fn len(&self) -> usize {
            6
        }
    }
    let loader = DataLoader::builder(FromBurn::new(Panics))
        .batch_size(2)
        .num_workers(1)
        .build()
        .unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    let are_ok: Vec<_> = batches.iter().map(Result::is_ok).collect();
    assert_eq!(are_ok, [true, false, true]);
    assert!(
        batches[1]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("a bug in get")
    );
}

#[test]
fn tensor_data_in_items_are_not_copied() {
    let items = (0..4).map(|row| TensorData::from([[row as f32; 3]; 2]));
    let data = FromBurn::new(InMemDataset::new(items.collect::<Vec<TensorData>>()));
    let loader = DataLoader::builder(data.map(|item, _| Ok(from_data::<f32>(item)?)))
        .batch_size(4)
        .build()
        .unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(
        (&batch.shape()[..], batch.row(3).as_slice()[0]),
        (&[4, 2, 3][..], 3.0)
    );
}

#[test]
fn our_samples_are_burns_items() {
    let ours = || ToBurn::new(from_fn(10, |index, _| Ok(index as i64)));
    let items: Vec<_> = ours().iter().map(Result::unwrap).collect();
    assert!(items.into_iter().eq(0..10));
    assert_eq!(ours().get_many(vec![7, 2]).unwrap(), [7, 2]);
    let shuffled = ShuffledDataset::new(ours(), 17);
    let mut items: Vec<i64> = (0..10).map(|index| shuffled.get(index).unwrap()).collect();
    assert!(!items.iter().copied().eq(0..10));
    items.sort_unstable();
    assert!(items.into_iter().eq(0..10));
}

/// The generator is the sample's: the same whatever was asked before, and in whichever call.
#[test]
fn augmentation_follows_from_seed_epoch_and_index() {
    let noise = || ToBurn::new(from_fn(10, |_, rng: &mut SampleRng| Ok(rng.next_u64())));
    let all = noise().with_seed(3).get_many((0..10).collect()).unwrap();
    assert_eq!(noise().with_seed(3).get(4).unwrap(), all[4]);
    assert_ne!(noise().with_seed(4).get(4).unwrap(), all[4]);
    let next = noise().with_seed(3);
    next.set_epoch(1);
    assert_ne!(next.get(4).unwrap(), all[4]);
}

#[test]
fn an_error_of_ours_names_its_sample() {
    let broken = from_fn(10, |index, _| match index {
        3 => Err("the file is empty".into()),
        index => Ok(index as i64),
    });
    let items = ToBurn::new(broken.describe(|index| format!("{index}.jpg")));
    assert!(items.get(2).is_ok());
    for error in [
        items.get(3).unwrap_err(),
        items.get_many(vec![1, 3]).unwrap_err(),
    ] {
        assert_eq!(
            error.to_string(),
            "sample 3 (3.jpg) failed to load: the file is empty"
        );
        let source = std::error::Error::source(&error).unwrap();
        assert!(matches!(
            source.downcast_ref(),
            Some(Error::Sample { index: 3, .. })
        ));
    }
}

#[test]
#[should_panic(expected = "the data set has 10 samples, and none at index 10")]
fn an_index_beyond_the_end_panics_as_burns_do() {
    let _ = ToBurn::new(from_fn(10, |index, _| Ok(index as i64))).get(10);
}
