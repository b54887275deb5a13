//! `jpeg`: a class folder of JPEGs to the device: decoding, random resized crop to 224, flip, batches of 256.
//!
//! Without `--data` it draws photo-like images of about 476x404 and 109 KB into the system's temporary folder, once.
//! A check of its own compares what arrived with batches that are loaded without workers and page-locked memory.

#[cfg(feature = "image")]
pub use images::{breakdown, run, startup};
#[cfg(not(feature = "image"))]
pub use none::{breakdown, run, startup};

#[cfg(not(feature = "image"))]
mod none {
    use std::path::Path;

    use crate::Outcome;
    use crate::args::Args;
    use crate::breakdown::Breakdown;
    use crate::report::{Record, Report};
    use crate::startup::Startup;

    const NEEDS: &str = "JPEGs need the feature `image`";

    pub fn run(_: &Args, _: &mut Report) -> Outcome {
        Err(NEEDS.into())
    }

    pub fn startup(_: &Startup<'_>) -> Outcome<Record> {
        Err(NEEDS.into())
    }

    pub fn breakdown(_: &Breakdown<'_>, _: &Path) -> Outcome<Record> {
        Err(NEEDS.into())
    }
}

#[cfg(feature = "image")]
mod images {
    use std::path::{Path, PathBuf};

    use pinfeed::{Batch, DataLoader, Device, ImageFolder, ImageTransform, Tensor};

    use crate::Outcome;
    use crate::args::{Args, cores};
    use crate::breakdown::Breakdown;
    use crate::draw;
    use crate::drive::{self, Way};
    use crate::report::{Record, Report};
    use crate::startup::Startup;
    use crate::target::Target;

    const SIDE: usize = 224;

    /// How many batches the check looks at: it loads them on one thread.
    const CHECKED_BATCHES: usize = 2;

    type Loader = DataLoader<(Tensor<u8>, Tensor<i64>)>;

    pub fn run(args: &Args, report: &mut Report) -> Outcome {
        let folder = folder(args)?;
        for &name in &args.devices {
            let target = Target::open(name)?;
            for &workers in &args.workers(&[cores()]) {
                for &batch_size in &args.batch_sizes(256) {
                    let device = target.device()?;
                    let pinned = args.pin.unwrap_or(true).then_some(&device);
                    let loader = loader(args, &folder, workers, batch_size, pinned)?;
                    let mut fed = drive::measure(&loader, Way::Loop, &device, args.seconds(5.0))?;
                    let checked = check(args, &folder, &loader, &device)?;
                    let mut record = Record::new("jpeg", target.name).fed(&mut fed);
                    record.workers = Some(workers);
                    record.batch_size = Some(batch_size);
                    record.dtype = Some("u8");
                    let record = record
                        .with("pinned", pinned.is_some())
                        .with("prefetch", args.prefetch(workers))
                        .with("checked_batches", checked);
                    report.print(&record);
                }
            }
        }
        Ok(())
    }

    /// A start on a folder of images.
    pub fn startup(startup: &Startup<'_>) -> Outcome<Record> {
        let folder = folder(startup.args)?;
        startup.measure(|| open(&folder))
    }

    /// The breakdown on a folder of images.
    pub fn breakdown(breakdown: &Breakdown<'_>, folder: &Path) -> Outcome<Record> {
        Ok(breakdown.measure(open(folder)?)?.with("data", "jpeg"))
    }

    /// The folder given, or one that is drawn.
    fn folder(args: &Args) -> Outcome<PathBuf> {
        match &args.data {
            Some(folder) => Ok(folder.clone()),
            None => draw::folder(args.samples.unwrap_or(2_000)),
        }
    }

    fn open(folder: &Path) -> Outcome<ImageFolder> {
        Ok(ImageFolder::open(folder)?.transform(ImageTransform::train(SIDE)))
    }

    fn loader(
        args: &Args,
        folder: &Path,
        workers: usize,
        batch_size: usize,
        pinned: Option<&Device>,
    ) -> Outcome<Loader> {
        let mut builder = DataLoader::builder(open(folder)?)
            .batch_size(batch_size)
            .shuffle(true)
            .seed(args.seed)
            .drop_last(true)
            .num_workers(workers);
        if let Some(device) = pinned {
            builder = builder.pin_memory(device);
        }
        if let Some(prefetch) = args.prefetch(workers) {
            builder = builder.prefetch(prefetch);
        }
        Ok(builder.build()?)
    }

    /// Compares batches as they arrived on the device with the same ones loaded on this thread.
    fn check(args: &Args, folder: &Path, loader: &Loader, device: &Device) -> Outcome<usize> {
        const EPOCH: u64 = 1 << 40; // one that was not measured
        let plain = self::loader(args, folder, 0, loader.batch_size(), None)?;
        let pairs = loader.epoch(EPOCH).zip(plain.epoch(EPOCH));
        let mut checked = 0;
        for (batch, expected) in pairs.take(CHECKED_BATCHES) {
            let (images, labels) = batch?.to_device(device, true)?;
            let (images, labels) = (images.to_host(true)?, labels.to_host(true)?);
            if (images.wait()?, labels.wait()?) != expected? {
                return Err(format!("corrupted: batch {checked} is not what was loaded").into());
            }
            checked += 1;
        }
        Ok(checked)
    }
}
