//! What the builder refuses, what it builds, and what is too much for any machine.

use pinfeed::collate::Arena;
use pinfeed::error::CollateError;
use pinfeed::sampler::{RandomSampler, Sampler, SequentialSampler};
use pinfeed::{BoxError, DataLoader, Device, DeviceTensor, Error, Ragged, Tensor, from_fn};

/// Ten samples, and each option set or not.
#[derive(Debug, Clone, Copy)]
struct Options {
    batch_size: usize,
    shuffle: bool,
    sampler: bool,
    workers: usize,
    prefetch: Option<usize>,
    drop_last: bool,
    pin: bool,
    strict: bool,
    by_copy: bool,
    min_slab_bytes: Option<usize>,
}

impl Options {
    fn build(self, device: &Device) -> Result<DataLoader<Tensor<i64>>, Error> {
        let samples = from_fn(10, |index, _| Ok(index as i64));
        let mut builder = DataLoader::builder(samples)
            .batch_size(self.batch_size)
            .shuffle(self.shuffle)
            .num_workers(self.workers)
            .drop_last(self.drop_last)
            .strict_pinning(self.strict)
            .pin_by_copy(self.by_copy);
        if self.sampler {
            builder = builder.sampler(SequentialSampler::new(10));
        }
        if let Some(prefetch) = self.prefetch {
            builder = builder.prefetch(prefetch);
        }
        if self.pin {
            builder = builder.pin_memory(device);
        }
        if let Some(bytes) = self.min_slab_bytes {
            builder = builder.min_slab_bytes(bytes);
        }
        builder.build()
    }

    /// The options that may be refused: one, or none.
    fn at_fault(self) -> Vec<&'static str> {
        let faults = [
            ("batch_size", self.batch_size == 0),
            (
                "prefetch",
                self.prefetch == Some(0) || self.prefetch.is_some() && self.workers == 0,
            ),
            ("sampler", self.sampler && self.shuffle),
            ("strict_pinning", self.strict && !self.pin),
            ("pin_by_copy", self.by_copy && !self.pin),
            ("min_slab_bytes", self.min_slab_bytes.is_some() && !self.pin),
        ];
        let faults = faults.into_iter().filter(|(_, is_fault)| *is_fault);
        faults.map(|(option, _)| option).collect()
    }

    /// All combinations.
    fn all() -> Vec<Options> {
        let mut all = vec![Options {
            batch_size: 3,
            shuffle: false,
            sampler: false,
            workers: 0,
            prefetch: None,
            drop_last: false,
            pin: false,
            strict: false,
            by_copy: false,
            min_slab_bytes: None,
        }];
        let vary = |all: &mut Vec<Options>, ways: &[fn(&mut Options)]| {
            let before = all.clone();
            for way in ways {
                all.extend(before.iter().map(|options| {
                    let mut options = *options;
                    way(&mut options);
                    options
                }));
            }
        };
        vary(&mut all, &[|o| o.batch_size = 0, |o| o.batch_size = 1_000]);
        vary(&mut all, &[|o| o.shuffle = true]);
        vary(&mut all, &[|o| o.sampler = true]);
        vary(&mut all, &[|o| o.workers = 1]);
        vary(
            &mut all,
            &[|o| o.prefetch = Some(0), |o| o.prefetch = Some(3)],
        );
        vary(&mut all, &[|o| o.drop_last = true]);
        vary(&mut all, &[|o| o.pin = true]);
        vary(&mut all, &[|o| o.strict = true]);
        vary(&mut all, &[|o| o.by_copy = true]);
        vary(&mut all, &[|o| o.min_slab_bytes = Some(5_000)]);
        all
    }
}

/// Each combination of options is built, and then gives its batches, or refused by the name of an option that is at fault.
#[test]
fn every_combination_is_built_or_refused_by_name() {
    let device = Device::cpu();
    let (mut built, mut refused) = (0, std::collections::BTreeSet::new());
    for options in Options::all() {
        let faults = options.at_fault();
        match options.build(&device) {
            Ok(loader) => {
                assert!(faults.is_empty(), "{options:?} was built");
                built += 1;
                let batches: Vec<_> = loader.epoch(0).map(Result::unwrap).collect();
                let lens: Vec<usize> = batches.iter().map(Tensor::len).collect();
                let expected: &[usize] = match (options.batch_size, options.drop_last) {
                    (3, false) => &[3, 3, 3, 1],
                    (3, true) => &[3, 3, 3],
                    (_, false) => &[10],
                    (_, true) => &[],
                };
                assert_eq!(lens, expected, "{options:?}");
                assert_eq!(
                    (loader.len(), loader.batch_size()),
                    (lens.len(), options.batch_size)
                );
                assert!(!options.strict || batches.iter().all(Tensor::is_pinned));
            }
            Err(Error::InvalidOption { option, reason }) => {
                assert!(faults.contains(&option), "{options:?}: `{option}` {reason}");
                refused.insert((option, reason));
            }
            Err(error) => panic!("{options:?}: {error}"),
        }
    }
    assert!(built > 100, "{built}");
    let refused: Vec<_> = refused.into_iter().collect();
    let refused: Vec<_> = refused
        .iter()
        .map(|(option, reason)| (*option, reason.as_str()))
        .collect();
    assert_eq!(
        refused,
        [
            ("batch_size", "is 0: a batch has at least one sample"),
            ("min_slab_bytes", "needs pin_memory(&device)"),
            ("pin_by_copy", "needs pin_memory(&device)"),
            (
                "prefetch",
                "is 0: at least one batch is loaded ahead; use num_workers(0) to load when asked"
            ),
            (
                "prefetch",
                "needs workers: with num_workers(0) batches are loaded when asked"
            ),
            (
                "sampler",
                "excludes shuffle: the sampler is the order; leave shuffle out"
            ),
            ("strict_pinning", "needs pin_memory(&device)"),
        ]
    );
}

#[cfg(all(target_os = "linux", not(miri)))]
fn workers(count: usize) -> Result<(), Error> {
    let samples = from_fn(10, |index, _| Ok(index as i64));
    let loader = DataLoader::builder(samples).num_workers(count).build()?;
    assert_eq!(loader.epoch(0).map(Result::unwrap).count(), 10);
    Ok(())
}

/// A thread that starts without memory for its second stack ends the process: so no more are started than have room.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn more_workers_than_have_stacks_are_refused() {
    for count in [10_000_000_000, usize::MAX] {
        let error = workers(count).unwrap_err();
        assert!(
            matches!(
                error,
                Error::InvalidOption {
                    option: "num_workers",
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("16 MiB of addresses"), "{error}");
    }
    workers(40).unwrap();
}

/// The same in a process of few addresses.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn few_addresses_are_an_error() {
    const NAME: &str = "builder::few_addresses_are_an_error";
    if std::env::var_os("PINFEED_FEW_ADDRESSES").is_some() {
        let error = workers(400).unwrap_err();
        assert!(error.to_string().contains("ulimit -v"), "{error}");
        return workers(16).unwrap();
    }
    let child = std::process::Command::new("sh")
        .args([
            "-c",
            &format!("ulimit -v 4194304 && exec \"$0\" --exact {NAME}"),
        ])
        .arg(std::env::current_exe().unwrap())
        .env("PINFEED_FEW_ADDRESSES", "1")
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(said.contains("1 passed"), "there is no test {NAME}: {said}");
}

fn too_large<B: pinfeed::Batch>(loader: &DataLoader<B>) {
    for epoch in 0..2 {
        for outcome in loader.epoch(epoch).take(2) {
            match outcome {
                Err(Error::HostMemory { bytes }) => assert!(bytes >= 1 << 40, "{bytes}"),
                Err(error) => panic!("{error}"),
                Ok(_) => panic!("a batch of 2^40 samples was made"),
            }
        }
    }
}

/// A batch of more samples than memory holds is an error, before the first is loaded: of what stays on the host too.
#[test]
fn a_batch_of_more_samples_than_memory_holds_is_an_error() {
    let device = Device::cpu();
    for (workers, pin) in [(0, false), (2, false), (0, true), (2, true)] {
        macro_rules! build {
            ($sample:expr $(, $collate:ident)?) => {{
                let samples = from_fn(u64::MAX, |_, _| Ok($sample));
                let builder = DataLoader::builder(samples)
                    .batch_size(1 << 40)
                    .num_workers(workers)
                    $(.collate_fn($collate))?;
                let builder = match pin {
                    true => builder.pin_memory(&device),
                    false => builder,
                };
                too_large(&builder.build().unwrap());
            }};
        }
        build!(String::from("sample"));
        build!((7i64, String::new()));
        build!((7i64, Ragged::from(vec![1u8])));
        build!(vec![7i64; 10]);
        fn first(samples: Vec<i64>, _: &mut Arena) -> Result<Tensor<i64>, BoxError> {
            Ok(Tensor::from(samples))
        }
        build!(7i64, first);
    }
}

/// As large as numbers go.
#[test]
fn a_batch_size_beyond_all_bounds_takes_what_there_is() {
    for workers in [0, 2] {
        let samples = from_fn(10, |index, _| Ok((index as i64, index.to_string())));
        let builder = DataLoader::builder(samples).batch_size(usize::MAX / 2);
        let loader = builder.num_workers(workers).build().unwrap();
        let batches: Vec<_> = loader.epoch(0).map(Result::unwrap).collect();
        assert_eq!((batches.len(), batches[0].1.len()), (1, 10));

        let samples = from_fn(u64::MAX, |index, _| Ok(index as i64));
        let builder = DataLoader::builder(samples).batch_size(usize::MAX / 2);
        let loader = builder.num_workers(workers).build().unwrap();
        assert!(loader.epoch(0).next().unwrap().is_err());
    }
}

/// Samples beyond all bounds, and options as large as numbers go.
#[derive(Debug, Clone, Copy)]
struct Giant {
    len: u64,
    batch_size: usize,
    workers: usize,
    prefetch: Option<usize>,
    drop_last: bool,
    shuffle: bool,
    pin: bool,
}

impl Giant {
    fn build(self, device: &Device) -> DataLoader<Tensor<i64>> {
        let samples = from_fn(self.len, |index, _| Ok(index as i64));
        let mut builder = DataLoader::builder(samples)
            .batch_size(self.batch_size)
            .num_workers(self.workers)
            .drop_last(self.drop_last)
            .shuffle(self.shuffle)
            .seed(5);
        if let Some(prefetch) = self.prefetch {
            builder = builder.prefetch(prefetch);
        }
        if self.pin {
            builder = builder.pin_memory(device);
        }
        builder.build().unwrap()
    }

    fn batches(self) -> u64 {
        match self.drop_last {
            true => self.len / self.batch_size as u64,
            false => self.len.div_ceil(self.batch_size as u64),
        }
    }

    /// Checks the first batches of an epoch: each has the right samples, or more than memory holds.
    fn check(self, epoch: u64, batches: impl ExactSizeIterator<Item = Result<Tensor<i64>, Error>>) {
        let whole = usize::try_from(self.batches()).unwrap_or(usize::MAX);
        assert_eq!(batches.len(), whole, "{self:?}");
        let mut seen = 0;
        for (number, batch) in (0..).zip(batches.take(3)) {
            seen += 1;
            let start = number * self.batch_size as u64;
            let rows = (self.len - start).min(self.batch_size as u64);
            match batch {
                Ok(batch) => {
                    assert!(rows <= 10, "{self:?}, batch {number}");
                    let positions = start..start + rows;
                    let expected = positions.map(|position| match self.shuffle {
                        true => RandomSampler::with_seed(self.len, 5).index(epoch, position) as i64,
                        false => position as i64,
                    });
                    assert!(
                        batch.as_slice().iter().copied().eq(expected),
                        "{self:?}, batch {number}"
                    );
                }
                // There is no number for the bytes of some.
                Err(Error::HostMemory { .. }) if rows > 1 << 50 => {}
                Err(Error::Collate(misfit)) if rows > 1 << 50 => {
                    assert!(matches!(misfit.source, CollateError::TooLarge));
                }
                Err(error) => panic!("{self:?}, batch {number}: {error}"),
            }
        }
        assert_eq!(seen, whole.min(3), "{self:?}");
    }

    fn all() -> impl Iterator<Item = Giant> {
        let lens = [u64::MAX, u64::MAX - 1, (1 << 63) + 1, 10];
        let sizes = [1, 3, usize::MAX / 2 + 1, usize::MAX - 1, usize::MAX];
        let workers = [(0, None), (2, None), (2, Some(usize::MAX))];
        let ways = [(false, false), (false, true), (true, false), (true, true)];
        ways.into_iter().flat_map(move |(drop_last, pin)| {
            lens.into_iter().flat_map(move |len| {
                sizes.into_iter().flat_map(move |batch_size| {
                    workers.map(|(workers, prefetch)| Giant {
                        len,
                        batch_size,
                        workers,
                        prefetch,
                        drop_last,
                        shuffle: drop_last == pin,
                        pin,
                    })
                })
            })
        })
    }
}

/// Whatever is built has the batches that arithmetic says, up to the sample with the largest index that there is.
#[test]
fn giant_options_are_served() {
    for giant in Giant::all() {
        let device = Device::cpu();
        device.set_pinned_budget_bytes(1 << 20);
        let loader = giant.build(&device);
        let whole = usize::try_from(giant.batches()).unwrap_or(usize::MAX);
        assert_eq!(loader.len(), whole, "{giant:?}");
        for epoch in [0, u64::MAX] {
            giant.check(epoch, loader.epoch(epoch));
        }
        for epoch in loader.epochs([7, u64::MAX, 0]) {
            giant.check(epoch.number(), epoch);
        }
    }
}

/// The same on a device, with as many batches ahead as there is room for, whole or in parts.
#[test]
fn giant_options_are_served_on_a_device() {
    let back = |there: Result<DeviceTensor<i64>, Error>| there?.to_host(true)?.wait();
    for giant in Giant::all().filter(|giant| giant.pin) {
        for (depth, is_cut) in [
            (0, false),
            (0, true),
            (usize::MAX, false),
            (usize::MAX, true),
        ] {
            let device = Device::cpu();
            device.set_pinned_budget_bytes(1 << 20);
            device.set_device_budget_bytes(1 << 15);
            if is_cut {
                device.cut_batches_at(1, 8); // a sample each
            }
            let loader = giant.build(&device);
            let epoch = loader.epoch(u64::MAX).prefetch_to_device(&device, depth);
            giant.check(u64::MAX, epoch.map(back));
            let epochs = loader.epochs(5..7).prefetch_to_device(&device, depth);
            for (number, epoch) in (5..).zip(epochs) {
                giant.check(number, epoch.map(back));
            }
        }
    }
}

/// An arena gives what memory there is, and an error for what there is not; what was refused is no wish for later batches.
#[test]
fn an_arena_refuses_what_memory_does_not_hold() {
    fn collate(samples: Vec<i64>, arena: &mut Arena) -> Result<Tensor<i64>, BoxError> {
        for shape in [
            &[1 << 50][..],
            &[1 << 62],
            &[usize::MAX],
            &[usize::MAX, usize::MAX],
        ] {
            match arena.zeros::<i64>(shape) {
                Err(Error::HostMemory { bytes }) => assert!(bytes >= 1 << 50),
                other => return Err(format!("{shape:?}: {other:?}").into()),
            }
        }
        let mut batch = arena.zeros(&[samples.len()])?;
        batch
            .as_mut_slice()
            .ok_or("shared")?
            .copy_from_slice(&samples);
        Ok(batch)
    }
    let device = Device::cpu();
    for workers in [0, 2] {
        let loader = DataLoader::builder(from_fn(12, |index, _| Ok(index as i64)))
            .batch_size(4)
            .num_workers(workers)
            .pin_memory(&device)
            .collate_fn(collate)
            .build()
            .unwrap();
        let batches: Vec<_> = loader.epoch(0).map(Result::unwrap).collect();
        assert_eq!(batches[2].as_slice(), [8, 9, 10, 11]);
        assert!(batches.iter().all(Tensor::is_pinned));
    }
}

/// A list of GPUs may be empty: the loop would be slower without a word. What is said last counts.
#[test]
fn pinning_for_no_device_is_refused() {
    let builder = || DataLoader::builder(from_fn(10, |index, _| Ok(index as i64))).batch_size(5);
    let none: Vec<Device> = Vec::new();
    let refused = builder().strict_pinning(true).pin_memory(&none).build();
    let Err(Error::InvalidOption { option, reason }) = refused else {
        panic!("it was built");
    };
    assert_eq!(option, "pin_memory");
    assert!(
        reason.contains("the list is empty") && reason.contains("leave"),
        "{reason}"
    );
    let stated = builder()
        .pin_memory(&none)
        .pin_memory(&Device::cpu())
        .build()
        .unwrap();
    assert!(stated.epoch(0).all(|batch| batch.unwrap().is_pinned()));
    let collated = builder()
        .pin_memory(&none)
        .collate_fn(|rows: Vec<i64>, arena| Ok(arena.collate(rows)?));
    assert!(collated.build().is_err());
}
