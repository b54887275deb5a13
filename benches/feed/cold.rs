//! `cold`: files that are not in memory. They are evicted before each pass; then an epoch of an `ImageFolder` loads them,
//! with reading ahead and without, and bare loops of threads read them, so that the disk's own limit is known.
//!
//! Variants: `read` loads the bytes and no more; `paced` sleeps for 1.7 ms beside, as where each worker has a core that
//! decodes; `decode` decodes and crops to 224. Disks are noisy: the passes take turns, and the medians are reported.

#[cfg(not(all(feature = "image", target_os = "linux")))]
pub fn run(_: &crate::args::Args, _: &mut crate::report::Report) -> crate::Outcome {
    Err("evicting files needs Linux, and the feature `image`".into())
}

#[cfg(all(feature = "image", target_os = "linux"))]
pub use linux::run;

#[cfg(all(feature = "image", target_os = "linux"))]
mod linux {
    use std::fs::{self, File};
    use std::os::fd::AsRawFd;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use pinfeed::collate::{Collate, Stack};
    use pinfeed::image::{ImageFolder, ImageTransform};
    use pinfeed::sampler::{RandomSampler, Sampler};
    use pinfeed::{DataLoader, Dataset};

    use crate::Outcome;
    use crate::args::{Args, cores};
    use crate::draw;
    use crate::report::{Record, Report};
    use crate::window::{Measured, Window, median};

    /// How often the passes take turns.
    const ROUNDS: u64 = 4;

    /// How many threads the bare loops have, beside one with as many as there are workers.
    const DEPTHS: [usize; 4] = [1, 4, 16, 64];

    /// What decoding a file of 110 KB takes.
    const PACE: Duration = Duration::from_micros(1_700);

    const ATTEMPTS: u32 = 3;

    /// Of so many files it is looked at whether they were evicted.
    const LOOKED_AT: usize = 16;

    pub fn run(args: &Args, report: &mut Report) -> Outcome {
        let folder = match &args.data {
            Some(folder) => folder.clone(),
            None => draw::folder(args.samples.unwrap_or(2_000))?,
        };
        let data = ImageFolder::open(folder)?.with_transform(ImageTransform::train(224));
        let files: Vec<PathBuf> = data.paths().collect();
        write_out(&files[0])?;
        for variant in args.variants(&["read", "paced", "decode"], 3) {
            for &workers in &args.workers(&[cores()]) {
                for &batch_size in &args.batch_sizes(256) {
                    let run = Run {
                        args,
                        data: &data,
                        files: &files,
                        variant,
                        workers,
                        batch_size,
                    };
                    report.print(&run.measure()?);
                }
            }
        }
        Ok(())
    }

    struct Run<'a> {
        args: &'a Args,
        data: &'a ImageFolder,
        files: &'a [PathBuf],
        variant: &'static str,
        workers: usize,
        batch_size: usize,
    }

    impl Run<'_> {
        fn measure(&self) -> Outcome<Record> {
            let mut bytes = 0;
            for file in self.files {
                bytes += fs::metadata(file)?.len();
            }
            let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
            let (mut ahead, mut plain, mut bare) = (Vec::new(), Vec::new(), Vec::new());
            let mut depths = DEPTHS.map(|_| Vec::new());
            let mut measured: Option<Measured> = None;
            for round in 0..ROUNDS {
                // What is first finds the disk as the last round left it: each is first once in two rounds.
                for reads_ahead in [round % 2 == 0, round % 2 == 1] {
                    let data = self.data.clone();
                    if reads_ahead {
                        let window = self.epoch(data, round)?;
                        ahead.push(rate(window.window_s));
                        match &mut measured {
                            Some(measured) => measured.add(&window),
                            None => measured = Some(window),
                        }
                        bare.push(rate(self.bare(self.workers.max(1), round)?));
                    } else {
                        let window = self.epoch(data.with_read_ahead(0), round)?;
                        plain.push(rate(window.window_s));
                    }
                }
                for (depth, rates) in DEPTHS.iter().zip(&mut depths) {
                    rates.push(rate(self.bare(*depth, round)?));
                }
            }
            let (gb_s, bare) = (median(ahead), median(bare));
            let depths = depths.map(median);
            let best = depths.iter().copied().fold(bare, f64::max);
            let mut record = Record::new("cold", "host");
            record.workers = Some(self.workers);
            record.batch_size = Some(self.batch_size);
            if let Some(measured) = measured {
                record = record.measured(&measured);
            }
            record.samples_s = Some(gb_s * 1e9 / bytes as f64 * self.files.len() as f64);
            Ok(record
                .with("variant", self.variant)
                .with_number("read_gb_s", gb_s)
                .with_number("read_gb_s_without_read_ahead", median(plain))
                .with_number("bare_read_gb_s", bare)
                .with_number("share_of_bare_read", gb_s / bare)
                .with("bare_depths", DEPTHS.to_vec())
                .with_numbers("bare_depths_gb_s", &depths)
                .with_number("share_of_best_depth", gb_s / best))
        }

        /// What an epoch takes, from `epoch()` to its last batch.
        fn epoch(&self, data: ImageFolder, number: u64) -> Outcome<Measured> {
            match self.variant {
                "read" => self.feed(data.map(|(_, label), _| Ok(label)), number),
                "paced" => {
                    let paced = |(_, label), _: &mut _| {
                        thread::sleep(PACE);
                        Ok(label)
                    };
                    self.feed(data.map(paced), number)
                }
                _ => self.feed(data, number),
            }
        }

        fn feed<D: Dataset>(&self, data: D, number: u64) -> Outcome<Measured>
        where
            Stack: Collate<D::Sample>,
        {
            let mut builder = DataLoader::builder(data)
                .batch_size(self.batch_size)
                .shuffle(true)
                .seed(self.args.seed)
                .num_workers(self.workers);
            if let Some(prefetch) = self.args.prefetch(self.workers) {
                builder = builder.prefetch(prefetch);
            }
            let loader = builder.build()?;
            evict(self.files)?;
            let window = Window::begin();
            for batch in loader.epoch(number) {
                drop(batch?);
            }
            Ok(window.end())
        }

        /// The seconds in which so many threads read all files, in an epoch's order, and do nothing else.
        fn bare(&self, threads: usize, number: u64) -> Outcome<f64> {
            let order = RandomSampler::with_seed(self.files.len() as u64, self.args.seed);
            let next = AtomicUsize::new(0);
            let read = || -> Outcome {
                loop {
                    let position = next.fetch_add(1, Ordering::Relaxed);
                    if position >= self.files.len() {
                        return Ok(());
                    }
                    fs::read(&self.files[order.index(number, position as u64) as usize])?;
                }
            };
            evict(self.files)?;
            let begun = Instant::now();
            thread::scope(|scope| {
                let threads: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
                let mut joined = threads.into_iter().map(|thread| thread.join());
                joined.try_for_each(|read| read.unwrap_or_else(|_| Err("reading panicked".into())))
            })?;
            Ok(begun.elapsed().as_secs_f64())
        }
    }

    /// Has the system write what it still has to, on the file's disk: nothing else can be forgotten.
    fn write_out(file: &Path) -> Outcome {
        let file = File::open(file)?;
        // SAFETY: it touches no memory.
        match unsafe { libc::syncfs(file.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }

    /// Has the system forget the files' content. What it knows of their names and places stays.
    fn evict(files: &[PathBuf]) -> Outcome {
        // What is being read at the moment stays, and is gone a moment later.
        for _ in 0..ATTEMPTS {
            if try_evict(files)? {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(200));
        }
        let folder = files[0].parent().unwrap_or(Path::new(""));
        Err(format!("{}: the files stay in memory", folder.display()).into())
    }

    fn try_evict(files: &[PathBuf]) -> Outcome<bool> {
        for path in files {
            let file = File::open(path)?;
            // SAFETY: it touches no memory. Whether it worked is looked at below.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        // A few will do, for looking has the system read a file again.
        let looked_at = &files[..files.len().min(LOOKED_AT)];
        let mut kept = 0;
        for path in looked_at {
            kept += usize::from(is_in_memory(&File::open(path)?));
        }
        Ok(kept * 2 <= looked_at.len())
    }

    /// Whether the first byte can be read without waiting for the disk.
    fn is_in_memory(file: &File) -> bool {
        let mut byte = 0_u8;
        let buffer = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        // SAFETY: the one byte that it writes is ours.
        let read =
            unsafe { libc::preadv2(file.as_raw_fd(), &raw const buffer, 1, 0, libc::RWF_NOWAIT) };
        read > 0
    }
}
