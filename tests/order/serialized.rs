//! What is written with `serde`: a run's state among a program's own fields.

use serde::{Deserialize, Serialize};
use serde_json::json;

use pinfeed::iterable::{self, IterableDataset};
use pinfeed::loader::{Iterable, IterableState, LoaderState};
use pinfeed::{DataLoader, Tensor, from_fn};

/// What a program saves.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Checkpoint<S> {
    step: u64,
    loader: S,
    weights: Vec<f32>,
}

fn numbers() -> DataLoader<Tensor<i64>> {
    let samples = from_fn(100, |index, _| Ok(index as i64));
    let loader = DataLoader::builder(samples).batch_size(8).shuffle(true);
    loader.seed(5).num_workers(2).build().unwrap()
}

fn streamed() -> DataLoader<Tensor<i64>, Iterable> {
    let numbers = iterable::from_fn(|_, _| Ok((0..100i64).map(Ok))).shuffle(10);
    let loader = DataLoader::iterable(numbers).batch_size(8).seed(5);
    loader.num_workers(2).build().unwrap()
}

/// Writes it, and reads it again: from a text, from a value, and through a reader, which cannot lend the text.
fn there_and_back<S>(loader: S) -> S
where
    S: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug,
{
    let saved = Checkpoint {
        step: 3,
        loader,
        weights: vec![0.5, -1.0],
    };
    let text = serde_json::to_string_pretty(&saved).unwrap();
    let read: Checkpoint<S> = serde_json::from_str(&text).unwrap();
    assert_eq!(read, saved);
    let read = serde_json::from_value(serde_json::to_value(&saved).unwrap()).unwrap();
    assert_eq!(saved, read);
    let read: Checkpoint<S> = serde_json::from_reader(text.as_bytes()).unwrap();
    assert_eq!(read, saved);
    read.loader
}

#[test]
fn a_run_goes_on_from_a_programs_own_checkpoint() {
    let loader = numbers();
    let mut epoch = loader.epoch(0);
    assert!(epoch.by_ref().take(3).all(|batch| batch.is_ok()));
    let state = there_and_back(loader.state());
    assert_eq!((state.epoch(), state.position()), (0, 24));
    let other = numbers();
    let resumed = other.resume(0..1, &state).unwrap().flatten();
    let rest: Vec<_> = resumed.map(|batch| batch.unwrap().to_vec()).collect();
    let expected: Vec<_> = epoch.map(|batch| batch.unwrap().to_vec()).collect();
    assert_eq!(rest, expected);
    assert_eq!(rest.len(), 10);

    let beginning = there_and_back(LoaderState::default());
    assert!(other.resume(0..1, &beginning).is_ok());
}

#[test]
fn a_stream_goes_on_from_a_programs_own_checkpoint() {
    let loader = streamed();
    let mut epoch = loader.epoch(0);
    assert!(epoch.by_ref().take(3).all(|batch| batch.is_ok()));
    let state = there_and_back(epoch.state());
    assert_eq!((state.epoch(), state.items()), (0, 24));
    let other = streamed();
    let resumed = other.resume(0..1, &state).unwrap().flatten();
    let rest: Vec<_> = resumed.map(|batch| batch.unwrap().to_vec()).collect();
    let expected: Vec<_> = epoch.map(|batch| batch.unwrap().to_vec()).collect();
    assert_eq!(rest, expected);
    assert_eq!(rest.len(), 10);

    there_and_back(IterableState::default());
}

/// It is the line of text that [`LoaderState`]'s documentation describes, and what is no state is refused with its own words.
#[test]
fn a_state_is_its_line_of_text() {
    let loader = numbers();
    assert!(loader.epoch(0).next().unwrap().is_ok());
    let state = loader.state();
    assert_eq!(json!(state), json!(state.to_string()));
    let refused = |value| serde_json::from_value::<LoaderState>(value).unwrap_err();
    let cut = state.to_string()[..60].to_owned();
    assert!(refused(json!(cut)).to_string().contains("cut off"));
    assert!(
        refused(json!("epoch 3"))
            .to_string()
            .contains("no loader's state")
    );
    let wrong = serde_json::from_value::<IterableState>(json!(state.to_string()));
    assert!(wrong.unwrap_err().to_string().contains("state"));
}
