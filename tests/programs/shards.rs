//! Records in several large files, too many to list: read one after the other, shuffled, and resumed where an interrupted run
//! stopped, without reading what came before.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use pinfeed::loader::IterableState;
use pinfeed::iterable::{ItemIter, Shard, IterableDataset};
use pinfeed::rng::RngKey;
use pinfeed::{BoxError, DataLoader, SampleRng};

/// Each record is its length and so many bytes.
struct Records {
    files: Vec<PathBuf>,
}

/// The files of a rank, in another order in each epoch.
struct Reading {
    files: Vec<PathBuf>,
    at: u64,
    offset: u64,
    open: Option<BufReader<File>>,
}

impl IterableDataset for Records {
    type Item = Vec<u8>;
    type Sample = ([f32; 4], i64);
    type Iter = Reading;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Reading, BoxError> {
        let mut files = self.files.clone();
        let mut rng = SampleRng::for_sampler(RngKey { seed: shard.seed(), epoch, position: 0 });
        for left in (2..=files.len()).rev() {
            files.swap(left - 1, rng.range(0..left));
        }
        let own = (0..).zip(files).filter(|(number, _)| shard.keeps(*number));
        Ok(Reading { files: own.map(|(_, file)| file).collect(), at: 0, offset: 0, open: None })
    }

    /// What takes time is done here, on all workers.
    fn load(&self, record: Vec<u8>, rng: &mut SampleRng) -> Result<([f32; 4], i64), BoxError> {
        let (&label, pixels) = record.split_first().ok_or("an empty record")?;
        let brightness = rng.range(0.9..1.1) as f32;
        let mut image = [0.0; 4];
        image.iter_mut().zip(pixels).for_each(|(value, &pixel)| *value = f32::from(pixel) * brightness);
        Ok((image, i64::from(label)))
    }
}

impl Reading {
    fn read(&mut self) -> Result<Option<Vec<u8>>, BoxError> {
        while let Some(path) = self.files.get(self.at as usize) {
            let file = match &mut self.open {
                Some(file) => file,
                closed => {
                    let mut file = BufReader::new(File::open(path)?);
                    file.seek(SeekFrom::Start(self.offset))?;
                    closed.insert(file)
                }
            };
            let mut length = [0];
            if file.read(&mut length)? == 1 {
                let mut record = vec![0; usize::from(length[0])];
                file.read_exact(&mut record)?;
                self.offset += 1 + record.len() as u64;
                return Ok(Some(record));
            }
            (self.at, self.offset, self.open) = (self.at + 1, 0, None);
        }
        Ok(None)
    }
}

impl ItemIter for Reading {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Result<Vec<u8>, BoxError>> {
        let read = self.read();
        if read.is_err() {
            self.at = u64::MAX; // nothing can be read behind an error
        }
        read.transpose()
    }

    fn state(&self) -> Option<Vec<u8>> {
        Some([self.at.to_le_bytes(), self.offset.to_le_bytes()].concat())
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let (at, offset) = state.split_at_checked(8).ok_or("the state is too short")?;
        self.at = u64::from_le_bytes(at.try_into()?);
        self.offset = u64::from_le_bytes(offset.try_into()?);
        Ok(())
    }
}

/// Trains for two epochs; the power goes off after `steps` steps. Returns the labels that it has seen.
fn train(folder: &Path, checkpoint: &Path, workers: usize, steps: usize) -> Result<Vec<i64>, Box<dyn Error>> {
    let files = (0..4).map(|file| folder.join(format!("{file}.records"))).collect();
    let loader = DataLoader::iterable(Records { files }.shuffle(20))
        .batch_size(8)
        .seed(17)
        .num_workers(workers)
        .build()?;
    let state = match fs::read_to_string(checkpoint) {
        Ok(saved) => saved.parse()?,
        Err(_) => IterableState::default(),
    };
    let (mut seen, mut step) = (Vec::new(), 0);
    for epoch in loader.resume(0..2, &state)? {
        for batch in epoch {
            let (_images, labels) = batch?;
            seen.extend_from_slice(labels.as_slice());
            fs::write(checkpoint, loader.state().to_string())?;
            step += 1;
            if step == steps {
                return Ok(seen);
            }
        }
    }
    Ok(seen)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    for file in 0..4u8 {
        let records = (0..30u8).flat_map(|record| [5, 30 * file + record, 1, 2, 3, 4]);
        fs::write(folder.path().join(format!("{file}.records")), records.collect::<Vec<_>>())?;
    }
    let run = |name: &str, workers, steps| train(folder.path(), &folder.path().join(name), workers, steps);
    let whole = run("whole", 2, usize::MAX)?;
    let mut seen = Vec::new();
    for (workers, steps) in [(2, 3), (0, 1), (3, 11), (1, 9), (2, usize::MAX)] {
        seen.extend(run("parts", workers, steps)?);
    }
    assert_eq!(seen, whole);
    let mut epoch = whole[..120].to_vec();
    epoch.sort_unstable();
    assert!(epoch.into_iter().eq(0..120)); // all records, once
    Ok(())
}
