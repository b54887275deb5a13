//! A page that shows what each thread did in the second epoch, when everything is warm.

use std::error::Error;

use pinfeed::{DataLoader, Device, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let device = Device::cpu();
    let loader = DataLoader::builder(from_fn(200, |index, _| Ok(vec![index as f32; 128])))
        .batch_size(10)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..3).prefetch_to_device(&device, 2) {
        let recording = (epoch.number() == 1).then(|| loader.record());
        for batch in epoch {
            batch?;
        }
        if let Some(recording) = recording {
            let timeline = recording.finish();
            assert!(!timeline.is_empty());
            std::fs::write(folder.path().join("epoch-1.html"), timeline.to_html())?;
        }
    }
    let page = std::fs::read_to_string(folder.path().join("epoch-1.html"))?;
    assert!(page.starts_with("<!DOCTYPE html>"));
    Ok(())
}
