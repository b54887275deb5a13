//! Two cameras, of which the second is off now and then: its picture is a tensor, or `None`.

use std::error::Error;

use pinfeed::error::CollateError;
use pinfeed::{DataLoader, Error as FeedError, Tensor, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let pictures = from_fn(48, |index, _| {
        let first = Tensor::from_vec(vec![index as u8; 8 * 8 * 3], &[8, 8, 3])?;
        // It was off for a while, and drops a frame now and then.
        let is_on = !(16..24).contains(&index) && index % 5 != 0;
        let second = is_on.then(|| first.view());
        Ok((first, second))
    });
    let loader = DataLoader::builder(pictures).batch_size(8).num_workers(2).build()?;

    let (mut pairs, mut left_out) = (0, 0);
    for batch in &loader {
        match batch {
            Ok((first, (second, is_on))) => {
                assert_eq!(first.shape(), second.shape());
                for (row, is_on) in is_on.as_slice().iter().enumerate() {
                    match is_on {
                        1 => assert_eq!(first.row(row), second.row(row)),
                        _ => assert_eq!(second.row(row), Tensor::zeros(&[8, 8, 3])),
                    }
                    pairs += u32::from(*is_on);
                }
            }
            // Nobody knows how large a picture would have been. (Who knows it takes zeros and a bool.)
            Err(FeedError::Collate(misfit)) if matches!(misfit.source, CollateError::AllNone { .. }) => {
                println!("{misfit:?}");
                left_out += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!((pairs, left_out), (31, 1));
    Ok(())
}
