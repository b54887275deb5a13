//! A batch for each day of a shop's sales, of which some days have none: those are left out of training, and kept for a chart of all days.

use std::error::Error;

use pinfeed::loader::OnEmpty;
use pinfeed::{DataLoader, Tensor};

/// The day, and what was paid.
fn sales() -> Vec<(i64, f32)> {
    let days = [0, 0, 0, 2, 2, 5, 6, 6, 6, 6, 9];
    days.iter().map(|day| (*day, 10.0 + *day as f32)).collect()
}

/// The sales of each of ten days.
fn by_day(sales: &[(i64, f32)]) -> Vec<Vec<u64>> {
    let mut days = vec![Vec::new(); 10];
    for (index, (day, _)) in sales.iter().enumerate() {
        days[*day as usize].push(index as u64);
    }
    days
}

fn loader(on_empty: OnEmpty) -> pinfeed::Result<DataLoader<(Tensor<i64>, Tensor<f32>)>> {
    let sales = sales();
    DataLoader::builder(sales.clone()).batch_sampler(by_day(&sales)).on_empty(on_empty).num_workers(1).build()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let train = loader(OnEmpty::Skip)?;
    assert_eq!(train.len(), 5);
    for batch in &train {
        let (_, paid) = batch?;
        let mean = paid.as_slice().iter().sum::<f32>() / paid.len() as f32;
        assert!(mean >= 10.0); // of something
    }

    let all = loader(OnEmpty::Keep)?;
    let totals = all.epoch(0).map(|batch| Ok(batch?.1.as_slice().iter().sum::<f32>()));
    let totals: Vec<f32> = totals.collect::<pinfeed::Result<_>>()?;
    println!("{totals:?}");
    assert_eq!(totals, [30.0, 0.0, 24.0, 0.0, 0.0, 15.0, 64.0, 0.0, 0.0, 19.0]);

    // Without a word, an empty list is an error in its batch's place, and says what to do.
    let errors: Vec<String> = loader(OnEmpty::default())?.epoch(0).filter_map(|batch| Some(batch.err()?.to_string())).collect();
    assert_eq!(errors.len(), 5);
    assert!(errors[0].contains("list 1 ") && errors[0].contains("OnEmpty::Keep"), "{}", errors[0]);
    Ok(())
}
