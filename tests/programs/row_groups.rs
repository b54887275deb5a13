//! Files of records that are read a few hundred at a time: shuffled over all of them, each stretch read once an epoch.

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use pinfeed::dataset::{BlockSource, Blocked};
use pinfeed::sampler::Blocks;
use pinfeed::{BoxError, DataLoader, Device, SampleRng};

/// How many features a record has, as f32, with its label in front.
const FEATURES: usize = 8;
const RECORD: usize = 4 * (1 + FEATURES);
/// How many records are read at once.
const GROUP: u64 = 64;

/// A folder of files, each of which has records of one size.
struct Records {
    files: Vec<(PathBuf, u64)>,
    /// The file of each block, and where in the file it begins.
    lies: Vec<(usize, u64)>,
    blocks: Arc<Blocks>,
}

impl Records {
    fn open(folder: &PathBuf) -> Result<Records, Box<dyn Error>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            files.push((entry.path(), entry.metadata()?.len() / RECORD as u64));
        }
        files.sort();
        let (mut lies, mut sizes) = (Vec::new(), Vec::new());
        for (file, (_, records)) in files.iter().enumerate() {
            for first in (0..*records).step_by(GROUP as usize) {
                lies.push((file, first));
                sizes.push(GROUP.min(records - first)); // a file's last group has fewer
            }
        }
        let blocks = Arc::new(Blocks::from_sizes(sizes)?);
        Ok(Records { files, lies, blocks })
    }
}

/// Some records, and the index of the first.
struct Group {
    first: u64,
    bytes: Vec<u8>,
}

impl BlockSource for Records {
    type Block = Group;
    type Sample = (Vec<f32>, i64);

    fn blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.blocks)
    }

    fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
        RECORD * (samples.end - samples.start) as usize
    }

    fn fetch(&self, block: u64, samples: Range<u64>) -> Result<Group, BoxError> {
        let (file, first) = self.lies[block as usize];
        let skipped = samples.start - self.blocks.range(block).start;
        let mut bytes = vec![0; self.block_bytes(block, samples.clone())];
        let mut file = File::open(&self.files[file].0)?;
        file.seek(SeekFrom::Start((first + skipped) * RECORD as u64))?;
        file.read_exact(&mut bytes)?;
        let first = samples.start;
        Ok(Group { first, bytes })
    }

    fn decode(&self, group: &Group, index: u64, rng: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        let at = RECORD * (index - group.first) as usize;
        let numbers = group.bytes[at..at + RECORD].chunks_exact(4);
        let mut numbers = numbers.map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        let label = numbers.next().ok_or("an empty record")? as i64;
        let features = numbers.map(|number| number + 0.01 * rng.f32()).collect();
        Ok((features, label))
    }

    fn describe(&self, index: u64) -> Option<String> {
        let block = self.blocks.block_of(index)?;
        let (file, first) = self.lies.get(block as usize)?;
        let record = first + index - self.blocks.range(block).start;
        Some(format!("record {record} of {}", self.files[*file].0.display()))
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("pinfeed-groups-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    for (file, records) in [500, 130, 700].into_iter().enumerate() {
        let records = (0..records).flat_map(|record| {
            let label = (1_000 * file + record) as f32;
            [label; 1 + FEATURES].into_iter().flat_map(f32::to_le_bytes)
        });
        fs::write(folder.join(format!("part-{file}")), records.collect::<Vec<u8>>())?;
    }

    let data = Arc::new(Blocked::new(Records::open(&folder)?));
    let device = Device::available();
    let loader = DataLoader::builder(Arc::clone(&data))
        .batch_size(50)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    let mut orders = Vec::new();
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        let mut labels = Vec::new();
        for batch in epoch {
            labels.extend(batch?.1.to_host(true)?.wait()?.to_vec());
        }
        orders.push(labels);
    }
    assert_ne!(orders[0], orders[1]);
    orders.iter_mut().for_each(|labels| labels.sort_unstable());
    assert_eq!(orders[0], orders[1]);
    assert_eq!((orders[0].len(), orders[0][1_329]), (1_330, 2_699));
    assert_eq!(data.stats().singles, 0);
    fs::remove_dir_all(&folder)?;
    Ok(())
}
