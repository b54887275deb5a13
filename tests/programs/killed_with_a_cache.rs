//! A run that keeps what it reads on a disk, and is killed (`kill -9`) again and again: each time it goes on from its checkpoint. No sample
//! is lost or doubled, and what was kept before is not requested again.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, thread};

use pinfeed::loader::LoaderState;
use pinfeed::store::{DiskCache, LocalFiles};
use pinfeed::webdataset::WebDataset;
use pinfeed::{BoxError, DataLoader};

const SHARDS: usize = 5;
const SAMPLES: usize = 60;

fn write_shards(folder: &Path) -> Result<(), BoxError> {
    fs::create_dir(folder)?;
    for shard in 0..SHARDS {
        let mut archive = tar::Builder::new(File::create(folder.join(format!("{shard}.tar")))?);
        for sample in 0..SAMPLES {
            let number = (shard * SAMPLES + sample).to_string();
            let mut header = tar::Header::new_gnu();
            header.set_size(number.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, format!("{number}.cls"), number.as_bytes())?;
            let clip = number.repeat(9_000);
            header.set_size(clip.len() as u64);
            archive.append_data(&mut header, format!("{number}.txt"), clip.as_bytes())?;
        }
        archive.into_inner()?;
    }
    Ok(())
}

/// Trains, and after each step writes down what it had, and where it is, in one line of a file.
fn train(home: &Path) -> Result<(), BoxError> {
    let bucket = LocalFiles::open(home.join("bucket"))?; // RemoteStore::open("s3://..")
    let cache = DiskCache::open(bucket, home.join("cache"), 1 << 30)?;
    let data = WebDataset::builder(cache, &format!("{{0..{}}}.tar", SHARDS - 1))
        .keep_index(home.join("index"))
        .build(|sample, _rng| Ok(sample.number::<i64>("cls")?))?;
    let loader = DataLoader::builder(data).batch_size(10).shuffle(true).seed(3).num_workers(2).build()?;
    let log = home.join("log");
    let state = match steps(&log)?.last() {
        Some((_, state)) => state.parse()?,
        None => LoaderState::default(),
    };
    let mut log = OpenOptions::new().create(true).append(true).open(log)?;
    for epoch in loader.resume(0..2, &state)? {
        for batch in epoch {
            let seen = batch?.to_vec();
            thread::sleep(Duration::from_millis(4)); // a step
            log.write_all(format!("{seen:?};{}\n", loader.state()).as_bytes())?;
        }
    }
    Ok(())
}

/// The steps that were written down: samples, and the state behind them. (One line is one write, which happens or not.)
fn steps(log: &Path) -> Result<Vec<(Vec<i64>, String)>, BoxError> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = |line: &str| -> Result<_, BoxError> {
        let (seen, state) = line.split_once(';').ok_or("half a line")?;
        let seen = seen.trim_matches(['[', ']']).split(", ");
        let seen: Result<Vec<i64>, _> = seen.map(str::parse).collect();
        Ok((seen?, state.to_owned()))
    };
    text.lines().map(line).collect()
}

pub fn main() -> Result<(), BoxError> {
    if !cfg!(unix) {
        return Ok(()); // no cache there
    }
    if let Some(home) = env::var_os("PINFEED_TEST_KILLED_HOME") {
        return train(Path::new(&home));
    }
    let home = tempfile::tempdir()?;
    write_shards(&home.path().join("bucket"))?;
    let mut killed = 0;
    for run in 1.. {
        let mut command = Command::new(env::current_exe()?);
        command.args(["--exact", "killed_with_a_cache"]).env("PINFEED_TEST_KILLED_HOME", home.path());
        let mut child = command.spawn()?;
        if run <= 5 {
            thread::sleep(Duration::from_millis(60 + 37 * run % 90));
            child.kill()?; // kill -9
        }
        if child.wait()?.success() {
            break;
        }
        killed += 1;
        assert!(run < 10, "it does not come to an end");
    }
    let mut seen: Vec<i64> = steps(&home.path().join("log"))?.into_iter().flat_map(|(seen, _)| seen).collect();
    seen.sort_unstable();
    let twice = (0..(SHARDS * SAMPLES) as i64).flat_map(|sample| [sample, sample]);
    assert!(seen.into_iter().eq(twice), "each sample once in each of two epochs");
    println!("killed {killed} times");
    Ok(())
}
