//! An accuracy over a test set tells nothing if parts of it are missing, and everything if one picture of thousands is broken. So
//! at most one in a thousand may be left out, on each of the two ranks; the number of those that counted is reported with the result.

use std::error::Error;

use pinfeed::loader::{OnError, World};
use pinfeed::{DataLoader, from_fn};

/// Correct answers and answers, or why there is no result.
fn evaluate(broken: fn(u64) -> bool, rank: usize) -> pinfeed::Result<(usize, usize)> {
    let samples = from_fn(4_000, move |index, _| match broken(index) {
        true => Err("it is no picture".into()),
        false => Ok((index as f32, (index % 10) as i64)),
    });
    let loader = DataLoader::builder(samples)
        .batch_size(64)
        .num_workers(2)
        .world(World::new(rank, 2)?)
        .on_error(OnError::Skip { at_most: u64::MAX })
        .bad_share_at_most(0.001, 2_000)
        .build()?;
    let (mut correct, mut answers) = (0, 0);
    for batch in loader.epoch(0) {
        let (pictures, labels) = batch?;
        answers += labels.len();
        let pairs = pictures.as_slice().iter().zip(labels.as_slice());
        correct += pairs.filter(|(picture, label)| (**picture as i64) % 10 == **label).count();
    }
    Ok((correct, answers))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let (mut correct, mut answers) = (0, 0);
    for rank in 0..2 {
        let (of_rank, all_of_rank) = evaluate(|index| index == 1_999, rank)?;
        (correct, answers) = (correct + of_rank, answers + all_of_rank);
    }
    assert_eq!((correct, answers), (3_999, 3_999));

    let refused = (0..2).map(|rank| evaluate(|index| index % 500 == 0, rank));
    for result in refused {
        let error = result.err().ok_or("a part of the test set is missing, and nothing was said")?;
        assert!(error.to_string().contains("more than a share of 0.001"), "{error}");
    }
    Ok(())
}
