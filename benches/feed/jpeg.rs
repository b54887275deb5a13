//! `jpeg`: a class folder of JPEGs to the device: decoding, random resized crop to 224, flip, batches of 256, which travel as
//! bytes and become normalised `f32` there.
//!
//! Without `--data` it draws photo-like images of about 476x404 and 109 KB into the system's temporary folder, once.
//! A check of its own compares what arrived with batches that are loaded without workers and page-locked memory. The limit
//! is a bare loop: as many threads decode and transform files that are in memory, one after the other, and drop the pixels.
//! With the feature `turbojpeg`, a second one makes the calls of libjpeg-turbo and fast_image_resize, without the library.
//! With `--decode device` the device decodes what it can, `--bare-decoder` gives the rate of a bare loop of its decoder, and the check says
//! how far the pixels are from the CPU's.
//! Both run after the loader, twice, and their files are read then, so that they are not in the loader's memory.

#[cfg(feature = "image")]
pub use images::{DECODER, Decoded, SIDE, breakdown, folder, loader, normalize, run, startup};
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
    use std::collections::BTreeMap;
    use std::fs;
    use std::hint::black_box;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::Instant;

    use pinfeed::image::{ImageError, ImageFolder, ImageTransform, LazyImage};
    use pinfeed::ops::Normalize;
    use pinfeed::rng::RngKey;
    use pinfeed::{Batch, DataLoader, Device, DeviceTensor, SampleRng, Stream, Tensor};

    use crate::Outcome;
    use crate::args::{Args, Decoder, cores};
    use crate::breakdown::Breakdown;
    use crate::draw;
    use crate::drive::{self, Arrived, Load, mean};
    use crate::report::{Record, Report};
    use crate::startup::Startup;
    use crate::target::{LIMIT, Target};
    use crate::window::rss_mb;

    pub const SIDE: usize = 224;

    /// An epoch that is not measured.
    const CHECKED_EPOCH: u64 = 1 << 40;

    /// How many batches the check looks at: it loads them on one thread.
    const CHECKED_BATCHES: usize = 2;

    /// A batch that the device decoded has the CPU's pictures if its bytes are off by no more, in the mean over the batch.
    const MEAN_OFF: f64 = 4.0;

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
                    let seconds = args.seconds(5.0);
                    let recording = args.timeline.as_ref().map(|_| loader.record());
                    let mut fed = drive::measure_epochs(
                        &loader,
                        args.depth,
                        &device,
                        seconds,
                        &mut normalize,
                    )?;
                    if let (Some(file), Some(recording)) = (&args.timeline, recording) {
                        fs::write(file, recording.finish().to_html())?;
                    }
                    let decoded = Decoded::of(args, &loader)?;
                    // Read now, so that they are not in the memory that the loader takes.
                    let files = match &mut files {
                        Some(files) => files,
                        none => none.insert(some_files(&folder)?),
                    };
                    let (calls, loop_s) = (calls(files, workers)?, bare(files, workers)?);
                    let bare_s = mean(loop_s, bare(files, workers)?);
                    let calls_s = mean(calls, self::calls(files, workers)?);
                    let (checked, off) = match args.decode {
                        Decoder::Cpu => (check(args, &folder, &loader, &device)?, None),
                        Decoder::Device | Decoder::Both => {
                            let off = differences(args, &folder, &loader, &device)?;
                            (off.batches, Some(off))
                        }
                    };
                    let mut record = Record::new("jpeg", target.name).fed(&mut fed);
                    record.workers = Some(workers);
                    record.batch_size = Some(batch_size);
                    record.dtype = Some("u8");
                    let share_of = |bare_s| record.samples_s.map_or(f64::NAN, |rate| rate / bare_s);
                    let (share, of_calls) = (share_of(bare_s), share_of(calls_s));
                    let bare_decoder = args.bare_decoder.unwrap_or(f64::NAN);
                    let of_decoder = share_of(bare_decoder);
                    let beyond = record.peak_rss_mb.zip(bare_mb);
                    let beyond = beyond.map_or(f64::NAN, |(peak, bare)| peak - bare);
                    let record = decoded
                        .record(record)
                        .with("decoder", DECODER)
                        .with_number("bare_decoder_samples_s", bare_decoder)
                        .with_number("share_of_bare_decoder", of_decoder)
                        .with_number("mean_off", off.as_ref().map_or(f64::NAN, |off| off.mean))
                        .with("most_off", off.map(|off| off.most))
                        .with_number("rss_beyond_mb", beyond)
                        .with_number("bare_loop_samples_s", bare_s)
                        .with_number("share_of_bare_loop", share)
                        .with_number("bare_calls_samples_s", calls_s)
                        .with_number("share_of_bare_calls", of_calls)
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
    pub fn normalize(
        (images, labels): (DeviceTensor<u8>, DeviceTensor<i64>),
        stream: &Stream,
    ) -> Outcome<Load> {
        let bytes = (images.size_bytes() + labels.size_bytes()) as u64;
        let images = images.normalize::<f32>(&Normalize::IMAGENET)?;
        let load = (images, labels).touch(stream)?;
        Ok(Load { bytes, ..load })
    }

    /// Who decoded the pictures of a loader, in all its epochs.
    pub struct Decoded {
        by: &'static str,
        by_device: u64,
        by_kernels: u64,
        share: Option<u8>,
        left_to_cpu: BTreeMap<&'static str, u64>,
    }

    impl Decoded {
        /// An error if the device was to decode, and decoded nothing.
        pub fn of(args: &Args, loader: &Loader) -> Outcome<Decoded> {
            let stats = loader.total_stats();
            let by = match args.decode {
                Decoder::Cpu => "cpu",
                Decoder::Both => "both",
                Decoder::Device if stats.decoder.decoded > 0 => "device",
                Decoder::Device => {
                    return Err(format!(
                        "--decode device: the device decoded none of {} pictures. Either this build or this device does not decode, the \
                         batches are not page-locked (--no-pin), or it takes none of the files: {:?}",
                        stats.samples, stats.decoder.left_to_cpu
                    )
                    .into());
                }
            };
            Ok(Decoded {
                by,
                by_device: stats.decoder.decoded,
                by_kernels: stats.decoder.by_kernels,
                share: stats.decoder.device_share,
                left_to_cpu: stats.decoder.left_to_cpu,
            })
        }

        /// Adds its keys.
        pub fn record(self, record: Record) -> Record {
            let reasons = self.left_to_cpu.into_iter();
            let reasons: serde_json::Map<_, _> = reasons
                .map(|(reason, pictures)| (reason.to_owned(), pictures.into()))
                .collect();
            record
                .with("decode", self.by)
                .with("device_decoded", self.by_device)
                .with("decoded_by_kernels", self.by_kernels)
                .with("device_share_of_64", self.share)
                .with("left_to_cpu", reasons)
        }
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
                let mut rng = SampleRng::for_sample(RngKey {
                    seed: 0,
                    epoch: 0,
                    position: number,
                });
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

    /// Images a second of the libraries' calls alone, which are counted with libjpeg-turbo only.
    #[cfg(feature = "turbojpeg")]
    fn calls(files: &[Arc<[u8]>], threads: usize) -> Outcome<f64> {
        crate::turbo::rate(files, threads, Instant::now() + LIMIT * 2)
    }

    #[cfg(not(feature = "turbojpeg"))]
    fn calls(_: &[Arc<[u8]>], _: usize) -> Outcome<f64> {
        Ok(f64::NAN)
    }

    /// A start on a folder of images.
    pub fn startup(startup: &Startup<'_>) -> Outcome<Record> {
        let folder = folder(startup.args)?;
        startup.measure(|| Ok(decoded_by(startup.args.decode, open(&folder)?)))
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
        Ok(ImageFolder::open(folder)?.with_transform(ImageTransform::train(SIDE)))
    }

    #[cfg(feature = "nvjpeg")]
    fn decoded_by(decoder: Decoder, images: ImageFolder) -> ImageFolder {
        use pinfeed::image::Decode;
        images.with_decode(match decoder {
            Decoder::Cpu => Decode::Cpu,
            Decoder::Device => Decode::Device,
            Decoder::Both => Decode::Both,
        })
    }

    /// (Without the feature, no command line asks for another one.)
    #[cfg(not(feature = "nvjpeg"))]
    fn decoded_by(_: Decoder, images: ImageFolder) -> ImageFolder {
        images
    }

    pub fn loader(
        args: &Args,
        folder: &Path,
        workers: usize,
        batch_size: usize,
        pinned: Option<&Device>,
    ) -> Outcome<Loader> {
        let mut builder = DataLoader::builder(decoded_by(args.decode, open(folder)?))
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
        #[cfg(feature = "nvjpeg")]
        if let Some(share) = args.share {
            builder = builder.device_share(share);
        }
        Ok(builder.build()?)
    }

    /// By how much bytes differ.
    struct Off {
        batches: usize,
        mean: f64,
        most: u8,
    }

    /// By how much the bytes of batches that the device decoded differ from the CPU's: in the mean, and at most.
    fn differences(args: &Args, folder: &Path, loader: &Loader, device: &Device) -> Outcome<Off> {
        let plain = self::loader(args, folder, 0, loader.batch_size(), None)?;
        let (mut batches, mut bytes, mut sum, mut most) = (0, 0u64, 0, 0);
        let sent = loader
            .epoch(CHECKED_EPOCH)
            .prefetch_to_device(device, args.depth);
        // (On the host, the CPU decodes.)
        for (batch, expected) in sent.zip(plain.epoch(CHECKED_EPOCH)).take(CHECKED_BATCHES) {
            let ((images, labels), expected) = (batch?, expected?);
            let (images, labels) = (images.to_host(true)?.wait()?, labels.to_host(true)?.wait()?);
            if labels != expected.1 || images.shape() != expected.0.shape() {
                return Err("corrupted: a batch is not what was loaded".into());
            }
            batches += 1;
            for (byte, expected) in images.as_slice().iter().zip(expected.0.as_slice()) {
                let off = byte.abs_diff(*expected);
                bytes += 1;
                sum += u64::from(off);
                most = most.max(off);
            }
        }
        let mean = sum as f64 / bytes as f64;
        match mean <= MEAN_OFF {
            true => Ok(Off { batches, mean, most }),
            false => Err(format!("corrupted: bytes that the device decoded are off by {mean:.2} in the mean, by {most} at most").into()),
        }
    }

    /// Compares batches as they arrived on the device with the same ones loaded on this thread.
    fn check(args: &Args, folder: &Path, loader: &Loader, device: &Device) -> Outcome<usize> {
        let plain = self::loader(args, folder, 0, loader.batch_size(), None)?;
        let pairs = loader.epoch(CHECKED_EPOCH).zip(plain.epoch(CHECKED_EPOCH));
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
