//! Where the files are, a store in memory that counts and fails, and whole data sets.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pinfeed::dataset::IntoDataset;
use pinfeed::error::Temporary;
use pinfeed::rng::RngKey;
use pinfeed::store::{Object, Store};
use pinfeed::{BoxError, Dataset, SampleRng};
use pinfeed_parquet::{Parquet, ParquetBuilder};

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

pub(crate) fn fixture(name: &str) -> Vec<u8> {
    fs::read(fixtures().join(name)).unwrap()
}

pub(crate) fn open(name: &str) -> ParquetBuilder {
    Parquet::open(fixtures().join(name).to_str().unwrap()).unwrap()
}

/// All samples, in the order in which they lie.
pub(crate) fn all<D: IntoDataset>(
    data: D,
) -> Result<Vec<<D::Dataset as Dataset>::Sample>, BoxError> {
    let data = data.into_dataset();
    (0..data.len()).map(|index| get(&data, index)).collect()
}

pub(crate) fn get<D: Dataset>(data: &D, index: u64) -> Result<D::Sample, BoxError> {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 1,
        epoch: 0,
        position: index,
    });
    data.get(index, &mut rng)
}

/// Objects in memory, which count what is read of them.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) objects: Mutex<BTreeMap<String, Vec<u8>>>,
    pub(crate) reads: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) lists: AtomicU64,
    /// How many reads fail before one succeeds.
    pub(crate) failing: AtomicU64,
    /// What they say, in place of the object's key.
    pub(crate) says: Option<&'static str>,
}

impl Memory {
    pub(crate) fn of<'a>(objects: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Memory {
        let objects = objects
            .into_iter()
            .map(|(key, bytes)| (key.to_owned(), bytes));
        Memory {
            objects: Mutex::new(objects.collect()),
            ..Memory::default()
        }
    }

    /// Counts from here on.
    pub(crate) fn restart(&self) {
        for count in [&self.reads, &self.bytes, &self.lists] {
            count.store(0, Ordering::SeqCst);
        }
    }

    fn describe(key: &str, bytes: &[u8]) -> Object {
        let sum = bytes.iter().fold(0u64, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
        });
        Object {
            key: key.to_owned(),
            bytes: bytes.len() as u64,
            version: Some(format!("{sum:x}")),
        }
    }
}

impl Store for Memory {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        let objects = self.objects.lock().unwrap();
        let is_below = |key: &str| {
            prefix.is_empty() || key.starts_with(&format!("{}/", prefix.trim_end_matches('/')))
        };
        Ok(objects
            .iter()
            .filter(|(key, _)| is_below(key))
            .map(|(key, bytes)| Memory::describe(key, bytes))
            .collect())
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        let objects = self.objects.lock().unwrap();
        let bytes = objects
            .get(key)
            .ok_or_else(|| format!("there is no {key}"))?;
        Ok(Memory::describe(key, bytes))
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.bytes
            .fetch_add(range.end - range.start, Ordering::SeqCst);
        let fails = |left: u64| left.checked_sub(1);
        if self
            .failing
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails)
            .is_ok()
        {
            let place = self.says.unwrap_or(&object.key);
            return Err(Temporary::new(format!("{place}: 503 Service Unavailable")).into());
        }
        if self.object(&object.key)? != *object {
            return Err(format!("{}: it was changed after it was listed", object.key).into());
        }
        let objects = self.objects.lock().unwrap();
        let part = objects[&object.key].get(range.start as usize..range.end as usize);
        Ok(part
            .ok_or_else(|| format!("{} has no bytes {range:?}", object.key))?
            .to_vec())
    }
}
