//! A loader's options, as `pinfeed.DataLoader` checked them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfeed::collate::Collate;
use pinfeed::iterable::IterableDataset;
use pinfeed::loader::{Builder, Iterable, IterableBuilder, LastBatch, OnError, Workers, World};
use pinfeed::sampler::{BlockSampler, Blocks, Sampler};
use pinfeed::{DataLoader, Dataset, Device, Error};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{OrRaise, say};
use crate::outgoing::Output;
use crate::sampler::PySampler;
use crate::thread::lock;

/// The options.
pub(crate) struct Options {
    pub(crate) batch_size: usize,
    pub(crate) num_workers: Option<usize>,
    pub(crate) device: Option<Device>,
    /// The device's number.
    pub(crate) ordinal: usize,
    /// Batches on the host go to page-locked memory of torch's.
    pub(crate) pins: bool,
    /// How many batches are on the device ahead of the one that the program has.
    pub(crate) depth: usize,
    pub(crate) output: Output,
    /// Memory that left is swept with each batch.
    pub(crate) sweeps: bool,
    pub(crate) collate_fn: Option<Py<PyAny>>,
    shuffle: bool,
    seed: u64,
    last_batch: LastBatch,
    prefetch: Option<usize>,
    in_order: bool,
    max_bytes: Option<usize>,
    timeout: Option<Duration>,
    sampler: Option<Arc<dyn Sampler>>,
    /// How many blocks are open at a time, over all ranks.
    tracks: Option<u64>,
    batches: Option<Vec<Vec<u64>>>,
    world: World,
    on_error: OnError,
    retry: Option<(u32, Duration)>,
    bad_share: Option<(f64, u64)>,
    /// Of a build with nvJPEG; without it, it is `None`.
    #[cfg_attr(not(feature = "nvjpeg"), allow(dead_code))]
    device_share: Option<f64>,
}

/// Takes an argument of this name.
fn get<'py, T>(options: &Bound<'py, PyDict>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    let py = options.py();
    let Some(value) = options.get_item(name)? else {
        return Err(say(py, "Error", &format!("the option {name} is missing")));
    };
    value
        .extract()
        .map_err(|error: <T as FromPyObject<'_, 'py>>::Error| {
            let error: PyErr = error.into();
            let reason = error
                .value(py)
                .str()
                .map_or_else(|_| String::new(), |text| text.to_string());
            say(
                py,
                "OptionError",
                &format!("{name}={}: {reason}", shown(&value)),
            )
        })
}

/// The share of the pictures that the device decodes.
fn device_share(options: &Bound<'_, PyDict>) -> PyResult<Option<f64>> {
    let share: Option<f64> = get(options, "device_share")?;
    if cfg!(not(feature = "nvjpeg")) && share.is_some() {
        let reason = "device_share: this build has no decoder for GPUs (the feature nvjpeg)";
        return Err(say(options.py(), "OptionError", reason));
    }
    Ok(share)
}

/// The options that both kinds of builders have. (They are two types.)
macro_rules! common {
    ($options:expr, $builder:expr) => {{
        let options: &Options = $options;
        let mut builder = $builder
            .seed(options.seed)
            .num_workers(options.num_workers.map_or(Workers::Auto, Workers::Fixed))
            .world(options.world)
            .on_error(options.on_error);
        if let Some(prefetch) = options.prefetch {
            builder = builder.prefetch(prefetch);
        }
        if let Some(bytes) = options.max_bytes {
            builder = builder.max_bytes_in_flight(bytes);
        }
        if let Some(timeout) = options.timeout {
            builder = builder.timeout(timeout);
        }
        if let Some((attempts, wait)) = options.retry {
            builder = builder.retry(attempts, wait);
        }
        if let Some((share, after)) = options.bad_share {
            builder = builder.bad_share_at_most(share, after);
        }
        #[cfg(feature = "nvjpeg")]
        if let Some(share) = options.device_share {
            builder = builder.device_share(share);
        }
        if let Some(device) = &options.device {
            builder = builder.pin_memory(device);
        }
        builder
    }};
}

/// A CUDA device. All loaders of the process share it, with its rings, and it stays until the process ends.
fn opened(py: Python<'_>, ordinal: usize) -> PyResult<Device> {
    static DEVICES: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());
    let known = |devices: &[(usize, Device)]| {
        let mut devices = devices.iter();
        devices
            .find(|(other, _)| *other == ordinal)
            .map(|(_, device)| device.clone())
    };
    if let Some(device) = known(&lock(&DEVICES)) {
        return Ok(device);
    }
    let device = py.detach(|| Device::cuda(ordinal)).or_raise(py)?;
    let mut devices = lock(&DEVICES);
    if let Some(device) = known(&devices) {
        return Ok(device); // another thread was faster
    }
    devices.push((ordinal, device.clone()));
    Ok(device)
}

fn shown(value: &Bound<'_, PyAny>) -> String {
    value
        .repr()
        .map_or_else(|_| "?".to_owned(), |text| text.to_string())
}

impl Options {
    pub(crate) fn new(options: &Bound<'_, PyDict>) -> PyResult<Options> {
        let py = options.py();
        let refused = |reason: String| Err(say(py, "OptionError", &reason));
        let last_batch = match get::<String>(options, "last_batch")?.as_str() {
            "drop" => LastBatch::Drop,
            "partial" => LastBatch::Partial,
            "fill" => LastBatch::Fill,
            other => {
                return refused(format!(
                    "last_batch={other:?}: it is \"partial\", \"drop\" or \"fill\""
                ));
            }
        };
        let (on_error, at_most): (String, Option<u64>) = get(options, "on_error")?;
        let at_most = at_most.unwrap_or(u64::MAX);
        let on_error = match on_error.as_str() {
            "fail" => OnError::Fail,
            "replace" => OnError::Replace { at_most },
            "skip" => OnError::Skip { at_most },
            other => {
                return refused(format!(
                    "on_error={other:?}: it is \"fail\", \"replace\" or \"skip\""
                ));
            }
        };
        let world = match get::<Option<(usize, usize)>>(options, "world")? {
            None => World::single(),
            Some((rank, size)) => World::new(rank, size).or_raise(py)?,
        };
        let seconds = |name: &str, seconds: f64| match Duration::try_from_secs_f64(seconds) {
            Ok(duration) => Ok(duration),
            Err(error) => Err(say(
                py,
                "OptionError",
                &format!("{name}={seconds}: {error}"),
            )),
        };
        let timeout: f64 = get(options, "timeout")?;
        let retry: Option<(u32, f64)> = get(options, "retry")?;
        let sampler: Option<Bound<'_, PySampler>> = get(options, "sampler")?;
        let device: Option<usize> = get(options, "device")?;
        let output = get::<String>(options, "output")?;
        let output = Output::named(py, &output, device.is_some())?; // (before a device is opened)
        Ok(Options {
            batch_size: get(options, "batch_size")?,
            num_workers: get(options, "num_workers")?,
            device: match device {
                None => None,
                Some(ordinal) => Some(opened(py, ordinal)?),
            },
            ordinal: device.unwrap_or_default(),
            pins: get(options, "pin_memory")?,
            depth: get(options, "depth")?,
            output,
            sweeps: get(options, "sweep")?,
            collate_fn: get(options, "collate_fn")?,
            shuffle: get(options, "shuffle")?,
            seed: get(options, "seed")?,
            last_batch,
            prefetch: get(options, "prefetch")?,
            in_order: get(options, "in_order")?,
            max_bytes: get(options, "max_bytes_in_flight")?,
            timeout: match timeout {
                0.0 => None,
                timeout => Some(seconds("timeout", timeout)?),
            },
            sampler: sampler.map(|sampler| sampler.get().shared()),
            tracks: get(options, "tracks")?,
            batches: get(options, "batch_sampler")?,
            world,
            on_error,
            retry: match retry {
                None => None,
                Some((attempts, wait)) => Some((attempts, seconds("retry", wait)?)),
            },
            bad_share: get(options, "bad_share")?,
            device_share: device_share(options)?,
        })
    }

    /// As `build`, of what has no index. (`pinfeed.DataLoader` has refused the options that it has not.)
    pub(crate) fn build_iterable<S, C>(
        &self,
        mut builder: IterableBuilder<S, C>,
    ) -> pinfeed::Result<Arc<DataLoader<C::Batch, Iterable>>>
    where
        S: IterableDataset,
        C: Collate<S::Sample>,
    {
        builder = common!(self, builder)
            .batch_size(self.batch_size)
            .drop_last(self.last_batch == LastBatch::Drop);
        builder.build().map(Arc::new)
    }

    /// `blocks`: those of the builder's data set.
    pub(crate) fn build<D, C>(
        &self,
        blocks: Option<Arc<Blocks>>,
        mut builder: Builder<D, C>,
    ) -> pinfeed::Result<Arc<DataLoader<C::Batch>>>
    where
        D: Dataset,
        C: Collate<D::Sample>,
    {
        builder = common!(self, builder)
            .in_order(self.in_order)
            .last_batch(self.last_batch);
        builder = match &self.batches {
            Some(batches) => builder.batch_sampler(batches.clone()),
            None => builder.batch_size(self.batch_size),
        };
        if self.shuffle && self.tracks.is_none() {
            builder = builder.shuffle(true);
        }
        if let Some(sampler) = &self.sampler {
            builder = builder.sampler(Arc::clone(sampler));
        }
        if let Some(tracks) = self.tracks {
            let Some(blocks) = blocks else {
                return Err(Error::InvalidOption {
                    option: "tracks",
                    reason: format!(
                        "is {tracks}, and this data set has no blocks: leave it out (tar shards and Parquet have)"
                    ),
                });
            };
            let order = BlockSampler::new(blocks).with_seed(self.seed);
            builder = builder.sampler(order.with_tracks(tracks)?);
        }
        builder.build().map(Arc::new)
    }
}
