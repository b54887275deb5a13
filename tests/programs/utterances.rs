//! Recordings of one to twelve seconds, cut out of long ones: silence is left out, batches have utterances of similar lengths, and the
//! batch goes to the device with little padding.

use std::error::Error;

use pinfeed::iterable::{self, IterableDataset};
use pinfeed::{DataLoader, Device, Padded};

const RATE: usize = 100;

/// An hour of a microphone: utterances, and silence between them.
fn recording(number: usize) -> Vec<(bool, usize)> {
    (0..60).map(|part| (part % 3 != 0, RATE * (1 + (7 * part + number) % 12))).collect()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let recordings = iterable::from_fn(|_epoch, shard| {
        let own = (0..20usize).filter(move |number| shard.keeps(*number as u64));
        Ok(own.map(|number| Ok(recording(number))))
    });
    let utterances = recordings
        .flat_map(|recording, _| Ok(recording.into_iter().map(Ok)))
        .filter(|(is_speech, _), _| Ok(*is_speech))
        .map(|(_, frames), _| Ok(frames));
    let samples = utterances
        .shuffle(200)
        .bucket_by_length(10, |frames| *frames)?
        .map(|frames, rng| Ok(Padded::from((0..frames).map(|_| rng.range(-1.0..1.0) as f32).collect::<Vec<_>>())));
    let loader = DataLoader::iterable(samples).batch_size(10).seed(17).num_workers(2).pin_memory(&device).build()?;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        let (mut frames, mut padded, mut utterances) = (0, 0, 0);
        for batch in epoch {
            let batch = batch?;
            let lengths = batch.lengths.to_host(true)?.wait()?;
            utterances += lengths.len();
            frames += lengths.as_slice().iter().sum::<i64>() as usize;
            padded += batch.values.shape().iter().product::<usize>();
        }
        assert_eq!(utterances, 20 * 40);
        assert!(100 * (padded - frames) < 5 * padded, "{frames} of {padded}");
    }
    Ok(())
}
