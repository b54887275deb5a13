//! A few steps before the run, to compile kernels and fill caches: on one batch of a stream, whose items the run still gets from the first.

use std::error::Error;

use pinfeed::{DataLoader, Device, iterable};

#[derive(pinfeed::Sample)]
struct Line {
    length: i64,
    letters: Vec<u8>,
    #[pinfeed(host)]
    text: String,
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let lines = iterable::from_fn(|_, _| Ok((0..12u64).map(|number| Ok(format!("line {number:02}")))));
    let lines = iterable::IterableDataset::map(lines, |text: String, _: &mut pinfeed::SampleRng| {
        Ok(Line { length: text.len() as i64, letters: text.clone().into_bytes(), text })
    });
    let loader = DataLoader::iterable(lines).batch_size(4).num_workers(1).pin_memory(&device).build()?;

    for batch in loader.replay(0)?.prefetch_to_device(&device, 1).take(3) {
        let batch = batch?;
        assert_eq!(batch.letters.shape()[..], [4, 7]);
        assert_eq!(batch.text[0], "line 00");
    }
    let mut texts = Vec::new();
    for batch in loader.epoch(0).prefetch_to_device(&device, 1) {
        let batch = batch?;
        assert_eq!(batch.length.len(), 4);
        texts.extend(batch.text);
    }
    assert_eq!(texts.len(), 12);
    assert_eq!(texts[0], "line 00");
    Ok(())
}
