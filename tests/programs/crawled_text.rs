//! Text that was crawled, in shards compressed by Zstandard, some of which are damaged: what is too short is left out, what cannot be read
//! is counted, and what is left is packed into rows of tokens.

use std::error::Error;
use std::fs;
use std::path::Path;

use pinfeed::DataLoader;
use pinfeed::iterable::IterableDataset;
use pinfeed::loader::OnError;
use pinfeed::webdataset::WebDataset;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for shard in 0..4 {
        let mut archive = tar::Builder::new(Vec::new());
        for page in 0..30 {
            let words = if page % 3 == 0 { 2 } else { 40 + page };
            let text = format!("page{page} ").repeat(words);
            let about = format!("{{\"url\": \"https://example.org/{shard}/{page}\"}}");
            for (field, contents) in [("txt", text), ("json", about)] {
                let mut header = tar::Header::new_gnu();
                header.set_size(contents.len() as u64);
                header.set_mode(0o644);
                archive.append_data(&mut header, format!("{page:05}.{field}"), contents.as_bytes())?;
            }
        }
        let mut bytes = compress_to_vec(&archive.into_inner()?[..], CompressionLevel::Fastest);
        if shard == 2 {
            bytes.truncate(bytes.len() / 2); // the disk was full
        }
        fs::write(folder.join(format!("crawl-{shard}.tar.zst")), bytes)?;
    }
    Ok(())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let shards = WebDataset::open(&format!("{}/crawl-{{0..3}}.tar.zst", folder.path().display()))?;
    let pages = shards.field("txt").stream(|sample, _rng| Ok(sample.text("txt")?.to_owned()))?;
    let tokens = pages
        .shuffle(50)
        .filter(|text, _| Ok(text.split_whitespace().count() >= 10))
        .map(|text, _| Ok(text.split_whitespace().map(|word| word.len() as i32).chain([0]).collect::<Vec<_>>()));
    let loader = DataLoader::iterable(tokens.pack(128)?)
        .batch_size(4)
        .on_error(OnError::Skip { at_most: 1 })
        .num_workers(2)
        .build()?;
    let mut documents = 0;
    for batch in loader.epoch(0) {
        let batch = batch?;
        documents += batch.tokens.as_slice().iter().filter(|token| **token == 0).count();
    }
    assert!(documents >= 3 * 20, "three shards are whole: {documents}");
    let stats = loader.stats();
    assert_eq!(stats.bad.skipped, 1, "one shard is cut off");
    assert!(stats.to_string().contains("crawl-2.tar.zst"), "{stats}");
    Ok(())
}
