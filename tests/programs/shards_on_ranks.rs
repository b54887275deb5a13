//! Tar shards read by two processes, one of which is lost: the run goes on with the other alone, and no sample comes twice.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::path::Path;

use pinfeed::dataset::Blocked;
use pinfeed::loader::{LoaderState, World};
use pinfeed::webdataset::WebDataset;
use pinfeed::{DataLoader, Dataset};

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for shard in 0..6 {
        let mut archive = tar::Builder::new(File::create(folder.join(format!("{shard}.tar")))?);
        for sample in 0..40 {
            let text = format!("clip {sample} of shard {shard}").repeat(20);
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, format!("{shard}/{sample:03}.txt"), text.as_bytes())?;
        }
        archive.into_inner()?;
    }
    Ok(())
}

/// The loader of a process: the batch of all together stays the same.
fn loader(folder: &Path, world: World) -> Result<DataLoader<Vec<String>>, Box<dyn Error>> {
    let shards = WebDataset::open(&format!("{}/", folder.display()))?;
    let data = shards
        .field("txt")
        .extent_bytes(8 << 10) // (small shards: in 64 KiB, the least by default, all of one would lie)
        .keep_index(folder.join("index"))
        .build(|sample, _rng| Ok(sample.key().to_owned()))?;
    let data = Blocked::new(data).with_in_flight(4).with_max_bytes(8 << 20);
    assert!(data.blocks().is_some_and(|blocks| blocks.len() > 12));
    let builder = DataLoader::builder(data).global_batch_size(16).shuffle(true).seed(4);
    Ok(builder.num_workers(2).world(world).build()?)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let mut seen = Vec::new();

    let mut state = None;
    for rank in 0..2 {
        let loader = loader(folder.path(), World::new(rank, 2)?)?;
        for batch in loader.epoch(0).take(5) {
            let batch = batch?;
            assert_eq!(batch.len(), 8, "its half");
            seen.extend(batch);
        }
        state = Some(loader.state().to_string()); // what the checkpoint has
    }

    let state: LoaderState = state.ok_or("no rank")?.parse()?;
    let alone = loader(folder.path(), World::new(0, 1)?)?;
    for epoch in alone.resume(0..1, &state)? {
        for batch in epoch {
            seen.extend(batch?);
        }
    }
    assert_eq!(seen.len(), 240);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>().len(), 240, "each once");
    Ok(())
}
