//! Pretraining from files of text, too many to count their documents: tokenised as they are read, shuffled, packed into rows, and
//! resumed where an interrupted run stopped.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use pinfeed::loader::StreamState;
use pinfeed::stream::{ItemStream, Shard, StreamSource};
use pinfeed::{BoxError, DataLoader, Device, SampleRng};

const CONTEXT: usize = 32;
const END_OF_TEXT: u16 = 256;

/// Each file has a text on each line.
struct Texts {
    files: Vec<PathBuf>,
}

/// The files of a rank.
struct Reading {
    files: Vec<PathBuf>,
    file: u64,
    line: u64,
    lines: Option<Vec<String>>,
}

impl StreamSource for Texts {
    type Item = String;
    type Sample = Vec<u16>;
    type Stream = Reading;

    fn open(&self, _epoch: u64, shard: Shard) -> Result<Reading, BoxError> {
        let own = (0..).zip(&self.files).filter(|(number, _)| shard.keeps(*number));
        Ok(Reading { files: own.map(|(_, file)| file.clone()).collect(), file: 0, line: 0, lines: None })
    }

    /// (A model's tokeniser stands here.)
    fn load(&self, text: String, _: &mut SampleRng) -> Result<Vec<u16>, BoxError> {
        Ok(text.bytes().map(u16::from).chain([END_OF_TEXT]).collect())
    }
}

impl ItemStream for Reading {
    type Item = String;

    fn next(&mut self) -> Option<Result<String, BoxError>> {
        loop {
            let path = self.files.get(self.file as usize)?;
            let lines = match &self.lines {
                Some(lines) => lines,
                None => match fs::read_to_string(path) {
                    Ok(text) => self.lines.insert(text.lines().map(str::to_owned).collect()),
                    Err(error) => {
                        (self.file, self.line) = (self.file + 1, 0);
                        return Some(Err(error.into()));
                    }
                },
            };
            if let Some(line) = lines.get(self.line as usize) {
                self.line += 1;
                return Some(Ok(line.clone()));
            }
            (self.file, self.line, self.lines) = (self.file + 1, 0, None);
        }
    }

    fn state(&self) -> Option<Vec<u8>> {
        Some([self.file.to_le_bytes(), self.line.to_le_bytes()].concat())
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let (file, line) = state.split_at_checked(8).ok_or("the state is too short")?;
        (self.file, self.line) = (u64::from_le_bytes(file.try_into()?), u64::from_le_bytes(line.try_into()?));
        Ok(())
    }
}

/// Trains until the epoch ends, or the power goes off after `steps` steps. Returns what the model has seen.
fn train(folder: &Path, checkpoint: &Path, workers: usize, steps: usize) -> Result<Vec<u16>, Box<dyn Error>> {
    let files = (0..6).map(|file| folder.join(format!("{file}.txt"))).collect();
    let device = Device::cpu();
    let rows = Texts { files }.shuffle(100).pack(CONTEXT)?;
    let loader = DataLoader::stream(rows)
        .batch_size(4)
        .seed(17)
        .num_workers(workers)
        .pin_memory(&device)
        .build()?;
    let state = match fs::read_to_string(checkpoint) {
        Ok(saved) => saved.parse()?,
        Err(_) => StreamState::default(),
    };
    let (mut seen, mut step) = (Vec::new(), 0);
    for mut epoch in loader.resume(0..1, &state)?.to_device(&device, 2) {
        while let Some(batch) = epoch.next() {
            let batch = batch?;
            assert!(batch.max_seqlen <= CONTEXT); // with `cu_seqlens`, what attention within documents takes
            let (tokens, mask) = (batch.tokens.to_host(true)?.wait()?, batch.mask.to_host(true)?.wait()?);
            let real = tokens.as_slice().iter().zip(mask.as_slice()).filter(|(_, real)| **real == 1);
            seen.extend(real.map(|(token, _)| *token));
            fs::write(checkpoint, epoch.state().to_string())?;
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
    let mut bytes = 0;
    for file in 0..6usize {
        let texts: String = (0..40).map(|line| "lorem ipsum ".repeat((file + line) % 7) + "dolor\n").collect();
        bytes += texts.len();
        fs::write(folder.path().join(format!("{file}.txt")), texts)?;
    }
    let run = |name: &str, workers, steps| train(folder.path(), &folder.path().join(name), workers, steps);
    let whole = run("whole", 2, usize::MAX)?;
    assert_eq!(whole.len(), bytes); // a token for each byte; the end of a line is the end of a text
    assert_eq!(whole.iter().filter(|token| **token == END_OF_TEXT).count(), 240);
    let mut seen = Vec::new();
    for (workers, steps) in [(3, 5), (0, 1), (1, 30), (2, usize::MAX)] {
        seen.extend(run("parts", workers, steps)?);
    }
    assert_eq!(seen, whole);
    Ok(())
}
