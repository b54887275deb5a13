//! The first test of any model: it must learn one batch by heart. If it does not, nothing else needs to be tried.

use std::error::Error;

use pinfeed::{DataLoader, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let points = from_fn(1_000, |_, rng| {
        let x = 2.0 * rng.f32() - 1.0;
        Ok((x, 3.0 * x + 0.5))
    });
    let loader = DataLoader::builder(points).batch_size(10).shuffle(true).seed(2).build()?;

    let (mut slope, mut offset) = (0.0f32, 0.0f32);
    let (mut first, mut last) = (None, 0.0);
    for batch in loader.replay(0)? { // a hundred times, as many as an epoch has batches
        let (x, y) = batch?;
        let (mut loss, mut by_slope, mut by_offset) = (0.0, 0.0, 0.0);
        for (x, y) in x.as_slice().iter().zip(y.as_slice()) {
            let off = slope * x + offset - y;
            loss += off * off / 10.0;
            by_slope += 2.0 * off * x / 10.0;
            by_offset += 2.0 * off / 10.0;
        }
        slope -= 0.4 * by_slope;
        offset -= 0.4 * by_offset;
        first.get_or_insert(loss);
        last = loss;
    }
    println!("loss {} to {last}", first.unwrap_or(0.0));
    assert!(first > Some(0.1) && last < 1e-3);
    Ok(())
}
