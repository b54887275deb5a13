//! What the tests share: seeds, samples whose bytes follow from their index, and their check.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use pinfeed::device::Hostile;
use pinfeed::rng::RngKey;
use pinfeed::{Batch, Dataset, Device, DeviceTensor, Result, SampleRng, Tensor, from_fn};

/// Runs a test with a random seed, which is named where it fails, and where it hangs.
pub fn watched(test: &str, body: impl FnOnce(u64)) {
    let seed = seed();
    let _watch = watch::on(format!("{test} with PINFEED_SEED={seed}"));
    if let Err(payload) = std::panic::catch_unwind(AssertUnwindSafe(|| body(seed))) {
        eprintln!("{test} failed with PINFEED_SEED={seed}");
        std::panic::resume_unwind(payload);
    }
}

/// `PINFEED_SEED`, or a new one.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    match std::env::var("PINFEED_SEED") {
        Ok(seed) => seed.parse().expect("PINFEED_SEED is a number"),
        Err(_) => std::hash::RandomState::new().build_hasher().finish() % 1_000_000,
    }
}

/// The tests' own choices, one stream for each purpose.
pub fn rng(seed: u64, purpose: u64) -> SampleRng {
    SampleRng::for_sample(RngKey {
        seed,
        epoch: purpose,
        position: u64::from(u32::MAX),
    })
}

/// Options of a device that is late by up to `delay`.
pub fn late(seed: u64, delay: Duration) -> Hostile {
    let mut options = Hostile::default();
    options.seed = seed;
    options.max_delay = delay;
    options
}

/// A device that is late by up to half a millisecond.
pub fn late_device(seed: u64) -> Device {
    Device::hostile(late(seed, Duration::from_micros(500))).unwrap()
}

pub type Pair = (Tensor<u8>, Tensor<i64>);
pub type PairOnDevice = (DeviceTensor<u8>, DeviceTensor<i64>);

/// How many bytes a sample has.
pub const BYTES: usize = 300;

/// A sample's bytes: no two samples have equal ones.
pub fn bytes_of(index: u64) -> Vec<u8> {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 1,
        epoch: 1,
        position: index,
    });
    (0..BYTES).map(|_| rng.next_u32() as u8).collect()
}

pub fn sample(index: u64) -> Result<(Tensor<u8>, i64)> {
    Ok((
        Tensor::from_vec(bytes_of(index), &[BYTES / 10, 10])?,
        index as i64,
    ))
}

/// Samples whose bytes follow from their index.
pub fn samples(len: u64) -> impl Dataset<Sample = (Tensor<u8>, i64)> {
    from_fn(len, |index, _| Ok(sample(index)?))
}

/// Checks every byte of a batch in host memory, whose samples must be these.
pub fn check((bytes, labels): &Pair, expected: impl IntoIterator<Item = u64>) {
    let expected: Vec<u64> = expected.into_iter().collect();
    let found: Vec<u64> = labels
        .as_slice()
        .iter()
        .map(|&label| label as u64)
        .collect();
    assert_eq!(found, expected);
    assert_eq!(bytes.shape()[..], [expected.len(), BYTES / 10, 10]);
    for (row, index) in bytes.as_slice().chunks_exact(BYTES).zip(expected) {
        assert!(row == bytes_of(index), "sample {index} is corrupted");
    }
}

/// Brings a batch back from the device and checks every byte.
pub fn check_on_device(there: &PairOnDevice, expected: impl IntoIterator<Item = u64>) {
    let (bytes, labels) = back(there).unwrap();
    check(&(bytes, labels), expected);
}

/// Brings a batch back from the device.
pub fn back((bytes, labels): &PairOnDevice) -> Result<Pair> {
    let (bytes, labels) = (bytes.to_host(true)?, labels.to_host(true)?);
    Ok((bytes.wait()?, labels.wait()?))
}

/// Sends a batch to the device and brings it back.
pub fn there_and_back(batch: Pair, device: &Device) -> Result<Pair> {
    back(&batch.to_device(device, true)?)
}

/// The samples of batch `number` of a loader that does not shuffle.
pub fn expected(number: usize, batch_size: usize, len: u64) -> std::ops::Range<u64> {
    let start = (number * batch_size) as u64;
    start..(start + batch_size as u64).min(len)
}
