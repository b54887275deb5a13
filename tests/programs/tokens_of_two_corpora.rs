//! Two corpora in llm.c's files of tokens, several of the one, as FineWeb is published for it: three windows of the web for one of code, on two workers,
//! saved in the middle and resumed.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use pinfeed::arrays::TokenFile;
use pinfeed::dataset::ConcatDataset;
use pinfeed::sampler::MixtureSampler;
use pinfeed::{DataLoader, Tensor};

const CONTEXT: usize = 24;
const VOCABULARY: u64 = 50_257;

/// As llm.c's `write_datafile` does.
fn write(path: &Path, tokens: impl ExactSizeIterator<Item = u16>) -> std::io::Result<()> {
    let mut file = [20_240_520u32, 1, tokens.len() as u32].map(u32::to_le_bytes).concat();
    file.resize(1_024, 0);
    file.extend(tokens.flat_map(u16::to_le_bytes));
    fs::write(path, file)
}

/// Batches of tokens, and of those that follow them.
type Windows = DataLoader<(Tensor<i64>, Tensor<i64>)>;

fn loader(files: &[(PathBuf, f64)]) -> Result<Windows, Box<dyn Error>> {
    let windows = |path: &PathBuf| TokenFile::<u16>::llm_c(path)?.with_vocabulary(VOCABULARY).windows(CONTEXT);
    let windows: Result<Vec<_>, _> = files.iter().map(|(path, _)| Ok(windows(path)?.to_i64())).collect();
    let corpus = ConcatDataset::new(windows.map_err(|error: pinfeed::Error| error)?)?;
    let weights: Vec<f64> = files.iter().map(|(_, weight)| *weight).collect();
    let mixture = MixtureSampler::new(&corpus.lengths(), &weights, 11)?.with_num_samples(160);
    Ok(DataLoader::builder(corpus).batch_size(8).sampler(mixture).num_workers(2).build()?)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    for number in 0..3u16 {
        write(&path(&format!("fineweb_train_{number:06}.bin")), (0..2_000u16).map(|token| number * 2_000 + token))?;
    }
    write(&path("code.bin"), (0..1_000u16).map(|token| 20_000 + token))?;
    let files = ["fineweb_train_000000.bin", "fineweb_train_000001.bin", "fineweb_train_000002.bin", "code.bin"];
    let files = files.map(|name| (path(name), 1.0)); // of four windows, three are of the web

    let whole: Result<Vec<_>, _> = loader(&files)?.epoch(1).map(|batch| batch.map(|(x, _)| x.to_vec())).collect();
    let whole = whole?;
    assert_eq!(whole.len(), 20);

    let first = loader(&files)?;
    let mut found = Vec::new();
    for batch in first.epoch(1).take(7) {
        found.push(batch?.0.to_vec());
    }
    let checkpoint = first.state().to_string();
    drop(first);
    for epoch in loader(&files)?.resume(1..2, &checkpoint.parse()?)? {
        for batch in epoch {
            let (x, y) = batch?;
            assert_eq!((&x.shape()[..], &y.shape()[..]), (&[8, CONTEXT][..], &[8, CONTEXT][..]));
            assert!(x.as_slice().iter().zip(y.as_slice()).all(|(x, y)| x + 1 == *y));
            let code = x.as_slice().chunks(CONTEXT).filter(|window| window[0] >= 20_000);
            assert_eq!(code.count(), 2, "of eight windows");
            found.push(x.to_vec());
        }
    }
    assert_eq!(found, whole);

    // A file of the other kind says which function opens it.
    let Err(error) = TokenFile::<u16>::raw(&files[0].0) else {
        return Err("it has a header".into());
    };
    assert!(error.to_string().contains("fineweb_train_000000.bin") && error.to_string().contains("TokenFile::llm_c"), "{error}");
    Ok(())
}
