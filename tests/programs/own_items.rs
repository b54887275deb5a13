//! A data set that keeps its items in `Vec`s, with the library's traits imported: the `Vec`s' own methods are what is called.

use std::error::Error;
use std::sync::Arc;

use pinfeed::prelude::*;
use pinfeed::{BoxError, Device};

/// Windows of a recording, which other parts of the program read, too.
struct Windows {
    items: Vec<f32>,
    recording: Arc<Vec<u8>>,
}

impl Dataset for Windows {
    type Sample = (f32, u8);

    fn len(&self) -> u64 {
        let (items, bytes): (usize, usize) = (self.items.len(), self.recording.len());
        items.min(bytes) as u64
    }

    fn get(&self, index: u64, _rng: &mut SampleRng) -> Result<(f32, u8), BoxError> {
        let item = self.items.get(index as usize).ok_or("no such window")?;
        let byte = self.recording.get(index as usize).ok_or("the recording ends before")?;
        Ok((*item, *byte))
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let recording = Arc::new(vec![1, 2, 3, 4, 5, 6]);
    let windows = Windows { items: vec![0.5; 6], recording: Arc::clone(&recording) };
    let loader = DataLoader::builder(windows).batch_size(3).pin_memory(&device).build()?;
    let mut seen = Vec::new();
    for batch in &loader {
        let (_, bytes) = batch?;
        seen.extend_from_slice(bytes.as_slice());
    }
    assert_eq!(seen, *recording);

    // A `Vec` is taken where a data set is.
    let numbers = DataLoader::builder(vec![1i64, 2, 3]).batch_size(3).build()?;
    for batch in &numbers {
        assert_eq!(batch?.as_slice(), [1, 2, 3]);
    }
    Ok(())
}
