//! `jpeg`: a class folder of JPEGs to the device: decoding, random resized crop to 224, flip, batches of 256, which travel as
//! bytes and become normalised `f32` there.
//!
//! Without `--data` it draws photo-like images of about 476x404 and 109 KB into the system's temporary folder, once.
//! A check of its own compares what arrived with batches that are loaded without workers and page-locked memory. The limit
//! is a bare loop: as many threads decode and transform files that are in memory, one after the other, and drop the pixels.
//! It runs after the loader, twice, and its files are read then, so that they are not in the loader's memory.

#[cfg(feature = "image")]
pub use images::{DECODER, SIDE, breakdown, folder, loader, run, startup};
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
    use std::fs;
    use std::hint::black_box;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::Instant;

    use pinfeed::image::{ImageError, ImageFolder, ImageTransform, LazyImage};
    use pinfeed::ops::Normalize;
    use pinfeed::{Batch, DataLoader, Device, DeviceTensor, SampleRng, Stream, Tensor};

    use crate::Outcome;
    use crate::args::{Args, cores};
    use crate::breakdown::Breakdown;
    use crate::draw;
    use crate::drive::{self, Arrived, Load, Way, mean};
    use crate::report::{Record, Report};
    use crate::startup::Startup;
    use crate::target::{LIMIT, Target};
    use crate::window::rss_mb;

    pub const SIDE: usize = 224;

    /// How many batches the check looks at: it loads them on one thread.
    const CHECKED_BATCHES: usize = 2;

    /// The bare loop goes round so many files, which it holds in memory.
    const BARE_FILES: usize = 4_000;

    pub const DECODER: &str = match cfg!(feature = "turbojpeg") {
        true => "turbojpeg",
        false => "image",
    };

    type Loader = DataLoader<(Tensor<u8>, Tensor<i64>)>;

    pub fn run(args: &Args, report: &mut Report) -> Outcome {
        let folder = folder(args)?;
        let mut files = None;
        for &name in &args.devices {
            let target = Target::open(name)?;
            for &workers in &args.workers(&[cores()]) {
                for &batch_size in &args.batch_sizes(256) {
                    let device = target.device()?;
                    let bare_mb = rss_mb();
                    let pinned = args.pin.unwrap_or(true).then_some(&device);
                    let loader = loader(args, &folder, workers, batch_size, pinned)?;
                    let way = Way::Ahead(args.depth);
                    let seconds = args.seconds(5.0);
                    let mut fed = drive::measure(&loader, way, &device, seconds, &mut normalize)?;
                    // Read now, so that they are not in the memory that the loader takes.
                    let files = match &mut files {
                        Some(files) => files,
                        none => none.insert(some_files(&folder)?),
                    };
                    let bare_s = mean(bare(files, workers)?, bare(files, workers)?);
                    let checked = check(args, &folder, &loader, &device)?;
                    let mut record = Record::new("jpeg", target.name).fed(&mut fed);
                    record.workers = Some(workers);
                    record.batch_size = Some(batch_size);
                    record.dtype = Some("u8");
                    let share = record.samples_s.map_or(f64::NAN, |rate| rate / bare_s);
                    let beyond = record.peak_rss_mb.zip(bare_mb);
                    let beyond = beyond.map_or(f64::NAN, |(peak, bare)| peak - bare);
                    let record = record
                        .with("decoder", DECODER)
                        .with_number("rss_beyond_mb", beyond)
                        .with_number("bare_loop_samples_s", bare_s)
                        .with_number("share_of_bare_loop", share)
                        .with("pinned", pinned.is_some())
                        .with("prefetch", args.prefetch(workers))
                        .with("checked_batches", checked);
                    report.print(&record);
                }
            }
        }
        Ok(())
    }

    /// What a training program does first: pictures, which travel as bytes, become `f32`.
    fn normalize(
        (images, labels): (DeviceTensor<u8>, DeviceTensor<i64>),
        stream: &Stream,
    ) -> Outcome<Load> {
        let bytes = (images.size_bytes() + labels.size_bytes()) as u64;
        let images = images.normalize::<f32>(&Normalize::IMAGENET)?;
        let load = (images, labels).touch(stream)?;
        Ok(Load { bytes, ..load })
    }

    /// The bytes of the folder's files, up to so many.
    fn some_files(folder: &Path) -> Outcome<Vec<Arc<[u8]>>> {
        let mut files = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let path = entry?.path();
                match path.is_dir() {
                    true => folders.push(path),
                    false if files.len() < BARE_FILES => files.push(fs::read(&path)?.into()),
                    false => {}
                }
            }
        }
        match files.is_empty() {
            true => Err(format!("{} has no files", folder.display()).into()),
            false => Ok(files),
        }
    }

    /// Images a second of the bare loop.
    fn bare(files: &[Arc<[u8]>], threads: usize) -> Outcome<f64> {
        let transform = ImageTransform::train(SIDE);
        let (next, end) = (AtomicU64::new(0), Instant::now() + LIMIT * 2);
        let decode = || -> Result<u64, ImageError> {
            let mut decoded = 0;
            while Instant::now() < end {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let file = Arc::clone(&files[number as usize % files.len()]);
                let mut rng = SampleRng::new(0, 0, number);
                let image = LazyImage::encoded(file).transform(&transform, &mut rng);
                black_box(image.decode()?);
                decoded += 1;
            }
            Ok(decoded)
        };
        let begun = Instant::now();
        let decoded = thread::scope(|scope| -> Outcome<u64> {
            let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(decode)).collect();
            let mut sum = 0;
            for thread in threads {
                sum += thread.join().map_err(|_| "the bare loop panicked")??;
            }
            Ok(sum)
        })?;
        Ok(decoded as f64 / begun.elapsed().as_secs_f64())
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
    pub fn folder(args: &Args) -> Outcome<PathBuf> {
        match &args.data {
            Some(folder) => Ok(folder.clone()),
            None => draw::folder(args.samples.unwrap_or(2_000)),
        }
    }

    fn open(folder: &Path) -> Outcome<ImageFolder> {
        Ok(ImageFolder::open(folder)?.transform(ImageTransform::train(SIDE)))
    }

    pub fn loader(
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
