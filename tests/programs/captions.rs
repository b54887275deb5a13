//! Pictures with captions as img2dataset stores them (jpg, txt, json): some have no caption, and one shard was not downloaded to its end.

use std::fs;
use std::path::Path;

use pinfeed::webdataset::{ShardError, WebDataset};
use pinfeed::{DataLoader, Error, Padded};

fn write(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for shard in 0..3 {
        let mut archive = tar::Builder::new(Vec::new());
        for sample in 0..20 {
            let key = format!("{shard:05}{sample:04}");
            let mut file = |field: &str, contents: &[u8]| {
                let mut header = tar::Header::new_gnu();
                header.set_size(contents.len() as u64);
                header.set_mode(0o644);
                archive.append_data(&mut header, format!("{key}.{field}"), contents)
            };
            file("jpg", &[0xff, 0xd8, 0xff])?; // (decoded by other programs here)
            file("json", format!(r#"{{"key": "{key}", "status": "success"}}"#).as_bytes())?;
            if sample % 5 != 4 {
                file("txt", "a word ".repeat(1 + sample % 3).as_bytes())?;
            }
        }
        fs::write(folder.join(format!("{shard:05}.tar")), archive.into_inner()?)?;
    }
    Ok(())
}

/// The words' lengths stand for tokens.
fn captions(folder: &Path) -> pinfeed::Result<WebDataset<(Padded<i64>, String)>> {
    let shards = WebDataset::open(&format!("{}/{{00000..00002}}.tar", folder.display()))?;
    shards.field("jpg").field("txt").skip_incomplete(true).build(|sample, _rng| {
        let words = sample.text("txt")?.split_whitespace();
        let tokens: Vec<i64> = words.map(|word| word.len() as i64).collect();
        Ok((Padded::from(tokens), sample.key().to_owned()))
    })
}

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;

    // Cut off in the download: no data set is built of it, and the error says which shard to fetch again.
    let last = folder.path().join("00002.tar");
    let complete = fs::read(&last)?;
    fs::write(&last, &complete[..complete.len() / 2])?;
    let error = captions(folder.path()).err().ok_or("the half was taken for the whole")?;
    let Error::Source(cause) = &error else {
        return Err(error.into());
    };
    let shard = cause.downcast_ref::<ShardError>().ok_or("another error")?.shard();
    assert!(shard.ends_with("00002.tar"), "{shard}");
    assert!(error.to_string().contains("cut off"), "{error}");
    fs::write(&last, &complete)?;

    let data = captions(folder.path())?;
    assert_eq!(data.len(), 48, "three of 20 have 16 captions each");
    let loader = DataLoader::builder(data).batch_size(12).shuffle(true).num_workers(2).build()?;
    let mut keys = Vec::new();
    for batch in loader.epoch(0) {
        let (tokens, named) = batch?;
        assert!(tokens.lengths.as_slice().iter().all(|length| [2, 4, 6].contains(length)));
        keys.extend(named);
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 48);
    Ok(())
}
