//! `shards`: the JPEGs of a class folder, as files and as tar shards, on the disk and in a bucket: the same work from each, in turns.
//!
//! Variants: `folder`, by `ImageFolder`; `tar`, the same files in shards of 1,000 beside the folder, by `WebDataset`; `s3`, these shards in a
//! real S3 server on the loopback (`--server` names `s3s-fs`), whose answers begin `--latency-ms` later. `serve` measures nothing: it serves files
//! and shards until its standard input ends, for the peers.
//! A bare loop beside `s3` reads ranges of 8 MiB by as many threads as there are requests in flight, and throws them away. What arrived from shards is compared with batches that are loaded without workers, from the disk.

pub const VARIANTS: &[&str] = &["folder", "tar", "s3", "serve"];

#[cfg(feature = "image")]
pub use images::run;

#[cfg(not(feature = "image"))]
pub fn run(_: &crate::args::Args, _: &mut crate::report::Report) -> crate::Outcome {
    Err("JPEGs need the feature `image`".into())
}

#[cfg(feature = "image")]
mod images {
    use std::fs::{self, File};
    use std::hint::black_box;
    use std::io::BufWriter;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::thread;
    use std::time::Instant;

    use pinfeed::dataset::{Blocked, BlockedStats};

    use pinfeed::image::{ImageTransform, LazyImage};
    use pinfeed::store::{LocalFiles, Store};
    use pinfeed::webdataset::WebDataset;
    use pinfeed::{DataLoader, Device, Tensor};

    use crate::Outcome;
    use crate::args::{Args, Decoder, cores};
    use crate::data::SplitMix;
    use crate::drive::{self, Fed};
    use crate::jpeg::{self, DECODER, Decoded, SIDE};
    use crate::report::{Record, Report};
    use crate::served::Served;
    #[cfg(feature = "object-store")]
    use crate::served::{KEY, SECRET};
    use crate::target::{self, LIMIT};

    /// Files in a shard, as img2dataset and webdataset's own examples have about.
    const SHARD_FILES: usize = 1_000;

    /// What a request of the bare loop asks for.
    const BARE_BYTES: u64 = 8 << 20;

    /// How many batches the check looks at.
    const CHECKED_BATCHES: usize = 2;

    /// Of the bare loop, if the program does not say.
    const IN_FLIGHT: usize = 32;

    type Loader = DataLoader<(Tensor<u8>, Tensor<i64>)>;
    type Stats = Box<dyn Fn() -> BlockedStats>;

    pub fn run(args: &Args, report: &mut Report) -> Outcome {
        let folder = jpeg::folder(args)?;
        let shards = shards_of(&folder, args.seed)?;
        let variants = args.variants(super::VARIANTS, 2);
        let sample_bytes = bytes_of_samples(&shards)?;
        let server = || args.server.as_deref().ok_or("--server names s3s-fs");
        if variants.contains(&"serve") {
            let everything =
                Served::start(server()?, args.servers, &beside(&folder)?, args.latency)?;
            println!("{}", everything.endpoint());
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
            return Ok(());
        }
        let served = match variants.contains(&"s3") {
            true => Some(Served::start(
                server()?,
                args.servers,
                &shards,
                args.latency,
            )?),
            false => None,
        };
        for &name in &args.devices {
            for &workers in &args.workers(&[cores()]) {
                for &batch_size in &args.batch_sizes(256) {
                    let device = target::open(name)?;
                    let mut measured = Vec::new();
                    for &variant in &variants {
                        let (loader, stats) = match variant {
                            "folder" => (
                                jpeg::loader(args, &folder, workers, batch_size, Some(&device))?,
                                None,
                            ),
                            "tar" => {
                                let store = LocalFiles::open(&shards)?;
                                loader(args, store, workers, batch_size, Some(&device))?
                            }
                            _ => {
                                let served = served.as_ref().ok_or("no server was started")?;
                                loader(args, bucket(served)?, workers, batch_size, Some(&device))?
                            }
                        };
                        measured.push((variant, loader, stats, Vec::new(), None));
                    }
                    for _ in 0..args.pairs {
                        for (_, loader, _, rates, last) in &mut measured {
                            let fed = drive::measure_epochs(
                                loader,
                                args.depth,
                                &device,
                                args.seconds(5.0),
                                &mut jpeg::normalize,
                            )?;
                            rates.push(fed.seen.load.samples as f64 / fed.measured.window_s);
                            *last = Some(fed);
                        }
                    }
                    let of_first = measured.first().map(|(.., rates, _)| rates.clone());
                    for (variant, loader, stats, rates, last) in &mut measured {
                        let Some(fed) = last else { continue };
                        if args.stats {
                            eprintln!("{variant}\n{}", loader.total_stats());
                        }
                        let against: Vec<f64> = of_first.iter().flatten().copied().collect();
                        let ratios = rates.iter().zip(&against).map(|(rate, first)| rate / first);
                        let share = median(ratios.collect());
                        let checked = match *variant {
                            "folder" => None,
                            _ => Some(check(args, &shards, loader)?),
                        };
                        let bare = match served.as_ref().filter(|_| *variant == "s3") {
                            Some(served) => {
                                bare(bucket(served)?, args.in_flight.unwrap_or(IN_FLIGHT))?
                            }
                            None => f64::NAN,
                        };
                        report.print(
                            &row(args, (variant, workers, batch_size), fed, loader)?
                                .with_number("median_samples_s", median(rates.clone()))
                                .with(
                                    "blocks_fetched",
                                    stats.as_ref().map(|stats| stats().fetched),
                                )
                                .with(
                                    "blocks_waited_for",
                                    stats.as_ref().map(|stats| stats().waited),
                                )
                                .with_numbers("all_samples_s", rates)
                                .with_number("bare_samples_s", bare / sample_bytes)
                                .with_number("share_of_first", share)
                                .with("checked_batches", checked),
                        );
                    }
                }
            }
        }
        Ok(())
    }

    fn row(
        args: &Args,
        (variant, workers, batch_size): (&str, usize, usize),
        fed: &mut Fed,
        loader: &Loader,
    ) -> Outcome<Record> {
        let decoded = Decoded::of(args, loader)?;
        let mut record = Record::new("shards", args.devices[0]).fed(fed);
        record.workers = Some(workers);
        record.batch_size = Some(batch_size);
        record.dtype = Some("u8");
        Ok(decoded
            .record(record)
            .with("variant", variant)
            .with("decoder", DECODER)
            .with_number("latency_ms", drive::ms(args.latency)))
    }

    /// Bytes of the shards for each sample.
    fn bytes_of_samples(shards: &Path) -> Outcome<f64> {
        let data = WebDataset::builder(LocalFiles::open(shards)?, "").build(|_, _| Ok(()))?;
        let objects = LocalFiles::open(shards)?.list("")?;
        let bytes: u64 = objects.iter().map(|object| object.bytes).sum();
        Ok(bytes as f64 / data.len() as f64)
    }

    /// Bytes a second of reading alone.
    fn bare(store: impl Store, threads: usize) -> Outcome<f64> {
        let mut ranges = Vec::new();
        for object in store.list("")? {
            for from in (0..object.bytes).step_by(BARE_BYTES as usize) {
                ranges.push((object.clone(), from..object.bytes.min(from + BARE_BYTES)));
            }
        }
        let (next, read) = (AtomicUsize::new(0), AtomicU64::new(0));
        let (begun, end) = (Instant::now(), Instant::now() + LIMIT * 6);
        let read_some = || -> Outcome {
            while Instant::now() < end {
                let (object, range) = &ranges[next.fetch_add(1, Ordering::Relaxed) % ranges.len()];
                let bytes = black_box(store.read(object, range.clone())?);
                read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(read_some)).collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("the bare loop panicked".into()))
            })
        })?;
        Ok(read.into_inner() as f64 / begun.elapsed().as_secs_f64())
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// The folder that holds files and shards, for the peers.
    fn beside(folder: &Path) -> Outcome<PathBuf> {
        let both = folder.with_extension("both");
        if !both.exists() {
            fs::create_dir(&both)?;
            let shards = folder.with_extension("shards");
            for (name, of) in [("files", folder), ("shards", &*shards)] {
                link(of, &both.join(name))?;
            }
        }
        Ok(both)
    }

    /// A copy of a folder whose files are links.
    fn link(from: &Path, to: &Path) -> Outcome {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => link(&entry.path(), &to.join(entry.file_name()))?,
                false => fs::hard_link(entry.path(), to.join(entry.file_name()))?,
            }
        }
        Ok(())
    }

    /// The class folder's files in tar shards, in an order drawn once, as whoever packs them does it. They are kept.
    fn shards_of(folder: &Path, seed: u64) -> Outcome<PathBuf> {
        let shards = folder.with_extension("shards");
        if shards.is_dir() {
            return Ok(shards);
        }
        let mut classes: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
        classes.sort_by_key(std::fs::DirEntry::file_name);
        let mut files = Vec::new();
        for (class, folder) in classes.iter().enumerate() {
            for file in fs::read_dir(folder.path())? {
                files.push((file?.path(), class));
            }
        }
        files.sort();
        let mut words = SplitMix(seed);
        for at in (1..files.len()).rev() {
            files.swap(at, (words.next() % (at as u64 + 1)) as usize);
        }
        let draft = folder.with_extension(format!("shards-{}", std::process::id()));
        fs::create_dir_all(&draft)?;
        for (number, files) in files.chunks(SHARD_FILES).enumerate() {
            let file = File::create(draft.join(format!("train-{number:06}.tar")))?;
            let mut tar = tar::Builder::new(BufWriter::new(file));
            for (at, (path, class)) in files.iter().enumerate() {
                let key = format!("{:09}", number * SHARD_FILES + at);
                let class = class.to_string();
                let mut header = tar::Header::new_ustar();
                header.set_mode(0o644);
                header.set_size(class.len() as u64);
                tar.append_data(&mut header, format!("{key}.cls"), class.as_bytes())?;
                tar.append_path_with_name(path, format!("{key}.jpg"))?;
            }
            tar.into_inner()?;
        }
        fs::rename(&draft, &shards)?;
        Ok(shards)
    }

    #[cfg(feature = "object-store")]
    fn bucket(served: &Served) -> Outcome<impl Store> {
        let endpoint = served.endpoint();
        let options = [
            ("aws_endpoint", &*endpoint),
            ("aws_allow_http", "true"),
            ("aws_access_key_id", KEY),
            ("aws_secret_access_key", SECRET),
            ("aws_region", "us-east-1"),
        ];
        Ok(pinfeed::store::RemoteStore::open_with(
            &served.bucket(),
            options,
        )?)
    }

    #[cfg(not(feature = "object-store"))]
    fn bucket(_: &Served) -> Outcome<LocalFiles> {
        Err("s3 needs the feature `object-store`".into())
    }

    #[cfg(feature = "nvjpeg")]
    fn decoded_by(decoder: Decoder, picture: LazyImage) -> LazyImage {
        use pinfeed::image::Decode;
        picture.with_decode(match decoder {
            Decoder::Cpu => Decode::Cpu,
            Decoder::Device => Decode::Device,
            Decoder::Both => Decode::Both,
        })
    }

    #[cfg(not(feature = "nvjpeg"))]
    fn decoded_by(_: Decoder, picture: LazyImage) -> LazyImage {
        picture
    }

    fn loader(
        args: &Args,
        store: impl Store,
        workers: usize,
        batch_size: usize,
        pinned: Option<&Device>,
    ) -> Outcome<(Loader, Option<Stats>)> {
        let transform = ImageTransform::train(SIDE);
        let decoder = args.decode;
        let mut shards = WebDataset::builder(store, "").field("jpg").field("cls");
        if let Some(bytes) = args.extent_kb {
            shards = shards.extent_bytes(bytes << 10);
        }
        let data = shards.build(move |sample, rng| {
            let picture = LazyImage::encoded(sample.shared("jpg")?);
            let picture = decoded_by(decoder, picture.transform(&transform, rng));
            Ok((picture, sample.number::<i64>("cls")?))
        })?;
        let mut data = Blocked::new(data);
        if let Some(requests) = args.in_flight {
            data = data.with_in_flight(requests);
        }
        if let Some(blocks) = args.blocks_ahead {
            data = data.with_blocks_ahead(blocks);
        }
        let data = Arc::new(data);
        let mut builder = DataLoader::builder(Arc::clone(&data))
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
        Ok((builder.build()?, Some(Box::new(move || data.stats()))))
    }

    /// Compares batches on the host with those that this thread loads from the disk. (On the host, the CPU decodes.)
    fn check(args: &Args, shards: &Path, loader: &Loader) -> Outcome<usize> {
        let store = LocalFiles::open(shards)?;
        let (plain, _) = self::loader(args, store, 0, loader.batch_size(), None)?;
        let epoch = 1 << 40; // not a measured one
        let mut checked = 0;
        for (batch, expected) in loader
            .epoch(epoch)
            .zip(plain.epoch(epoch))
            .take(CHECKED_BATCHES)
        {
            let (batch, expected) = (batch?, expected?);
            if batch != expected {
                return Err(
                    format!("corrupted: batch {checked} is not what is in the shards").into(),
                );
            }
            checked += 1;
        }
        Ok(checked)
    }
}
