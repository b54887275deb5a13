//! Speech for the CTC loss: spectrograms and transcripts, both padded, each with its lengths.

use std::error::Error;

use pinfeed::{DataLoader, Padded, from_fn};

const BANDS: usize = 80;
/// The logarithm of no energy at all.
const SILENCE: f32 = -11.5;
/// The network has a step for so many frames.
const STRIDE: usize = 4;

pub fn main() -> Result<(), Box<dyn Error>> {
    let clips = from_fn(20, |index, rng| {
        let frames = 40 + 12 * index as usize;
        let spectrogram: Vec<[f32; BANDS]> = (0..frames).map(|_| [rng.f32(); BANDS]).collect();
        let transcript: Vec<i32> = (0..frames as i32 / 12).map(|letter| 1 + letter % 26).collect();
        Ok((
            Padded::from(spectrogram).with_value(SILENCE).with_multiple_of(STRIDE),
            Padded::from(transcript), // 0 is the blank, which the loss does not read behind a transcript's length
        ))
    });
    let loader = DataLoader::builder(clips).batch_size(8).shuffle(true).seed(3).num_workers(2).build()?;

    let (mut own, mut all) = (0, 0);
    for batch in &loader {
        let (spectrograms, transcripts) = batch?;
        let [clips, frames, BANDS] = spectrograms.values.shape()[..] else {
            return Err("a batch of spectrograms has three dimensions".into());
        };
        assert_eq!(frames % STRIDE, 0);
        for clip in 0..clips {
            // Their lengths are what the loss takes: of the network's steps, and of the targets.
            let input_length = spectrograms.lengths.as_slice()[clip] / STRIDE as i64;
            let target_length = transcripts.lengths.as_slice()[clip];
            assert!(input_length >= target_length, "or there is no alignment");
            let spectrogram = spectrograms.values.row(clip);
            let behind = &spectrogram.as_slice()[spectrograms.row(clip).len()..];
            assert!(behind.iter().all(|energy| *energy == SILENCE));
        }
        own += spectrograms.lengths.as_slice().iter().sum::<i64>();
        all += clips * frames;
    }
    println!("{:.0} % of the frames are padding", 100.0 - 100.0 * own as f64 / all as f64);
    assert_eq!(own, (0..20).map(|index| 40 + 12 * index).sum::<i64>());
    Ok(())
}
