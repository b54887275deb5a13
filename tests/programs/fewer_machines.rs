//! A stream of compressed shards on four ranks, of which one machine is taken away, and later two more come: the epoch goes on with three
//! ranks, and with five, and each sample comes once.

use std::error::Error;
use std::fs;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use pinfeed::DataLoader;
use pinfeed::iterable::IterableDataset;
use pinfeed::loader::{Iterable, IterableState, World};
use pinfeed::webdataset::WebDataset;

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for shard in 0..20 {
        let file = fs::File::create(folder.join(format!("{shard:02}.tar.gz")))?;
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::fast()));
        for sample in 0..10 + shard % 5 {
            let text = format!("sentence {sample} of shard {shard}");
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, format!("{shard}/{sample:03}.txt"), text.as_bytes())?;
        }
        archive.into_inner()?.finish()?;
    }
    Ok(())
}

/// What each rank runs.
fn loader(folder: &Path, rank: usize, ranks: usize) -> Result<DataLoader<Vec<String>, Iterable>, Box<dyn Error>> {
    let shards = WebDataset::open(&format!("{}/", folder.display()))?;
    let texts = shards.field("txt").stream(|sample, _rng| Ok(sample.text("txt")?.to_owned()))?;
    let builder = DataLoader::iterable(texts.shuffle(30)).batch_size(4).seed(11).num_workers(1);
    Ok(builder.world(World::new(rank, ranks)?).build()?)
}

/// Runs some steps on each of several ranks, from the checkpoint on, and saves the next one.
fn train(folder: &Path, ranks: usize, steps: usize, seen: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    let checkpoint = folder.join("checkpoint"); // a line for each rank
    let saved = fs::read_to_string(&checkpoint).unwrap_or_default();
    let saved: Vec<IterableState> = saved.lines().map(str::parse).collect::<Result<_, _>>()?;
    let mut states = String::new();
    for rank in 0..ranks {
        let loader = loader(folder, rank, ranks)?;
        let state = match saved.is_empty() {
            true => IterableState::default(),
            false => loader.hand_over(&saved)?,
        };
        for mut epoch in loader.resume(0..1, &state)? {
            for batch in epoch.by_ref().take(steps) {
                seen.extend(batch?);
            }
            states += &format!("{}\n", epoch.state());
        }
    }
    fs::write(checkpoint, states)?;
    Ok(())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let mut seen = Vec::new();
    train(folder.path(), 4, 5, &mut seen)?;
    train(folder.path(), 3, 4, &mut seen)?;
    assert_eq!(seen.len(), 4 * (4 * 5 + 3 * 4));
    train(folder.path(), 5, usize::MAX, &mut seen)?;
    let samples = (0..20).map(|shard| 10 + shard % 5).sum::<usize>();
    assert_eq!(seen.len(), samples);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), samples, "each once");
    Ok(())
}
