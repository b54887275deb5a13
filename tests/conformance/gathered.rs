//! Rows of registered memory go to the device from where they lie: the same bytes come, whoever else touches the batch.

use pinfeed::collate::{Relocation, Tensors, Upload};
use pinfeed::error::CollateError;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{Batch, DataLoader, Dataset, Device, DeviceTensor, Sample, Tensor, TensorDataset};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "registered_rows_go_from_where_they_lie",
        registered_rows_go_from_where_they_lie,
    ),
    ("rows_of_any_length_arrive", rows_of_any_length_arrive),
    (
        "rows_from_elsewhere_mix_with_registered_ones",
        rows_from_elsewhere_mix_with_registered_ones,
    ),
    (
        "a_batch_of_ones_own_reads_gathered_rows",
        a_batch_of_ones_own_reads_gathered_rows,
    ),
    (
        "a_sample_of_ones_own_writes_where_others_are_gathered",
        a_sample_of_ones_own_writes_where_others_are_gathered,
    ),
    ("a_few_rows_are_gathered", a_few_rows_are_gathered),
    (
        "registered_memory_outlives_its_loader",
        registered_memory_outlives_its_loader,
    ),
    #[cfg(target_os = "linux")]
    ("a_mapped_file_goes_from_where_it_lies", |backend| {
        a_mapped_file_goes_from_where_it_lies(backend, libc::MAP_SHARED);
    }),
    #[cfg(target_os = "linux")]
    (
        "arrays_of_a_mapped_file_go_from_where_they_lie",
        arrays_of_a_mapped_file_go_from_where_they_lie,
    ),
    #[cfg(target_os = "linux")]
    ("a_private_mapping_goes_from_where_it_lies", |backend| {
        a_mapped_file_goes_from_where_it_lies(backend, libc::MAP_PRIVATE);
    }),
];

/// Not a multiple of 16, so that rows lie at odd addresses; long enough to be gathered.
const ROW: usize = 20_011;
const LEN: u64 = 203;

/// A byte that follows from sample and place.
fn byte(sample: u64, place: usize) -> u8 {
    (sample as usize * 31 + place * 7 + place / 256) as u8
}

fn images() -> Tensor<u8> {
    let bytes = (0..LEN).flat_map(|sample| (0..ROW).map(move |place| byte(sample, place)));
    Tensor::from_vec(bytes.collect(), &[LEN as usize, ROW]).unwrap()
}

fn labels() -> Tensor<i64> {
    Tensor::from((0..LEN as i64).collect::<Vec<_>>())
}

fn registered(device: &Device) -> TensorDataset<(Tensor<u8>, Tensor<i64>)> {
    TensorDataset::new((images().register(device).unwrap(), labels())).unwrap()
}

fn check(images: &DeviceTensor<u8>, samples: &[u64]) {
    let there = images.to_host(true).unwrap().wait().unwrap();
    assert_eq!(there.shape()[..], [samples.len(), ROW]);
    for (row, &sample) in there.as_slice().chunks_exact(ROW).zip(samples) {
        let wrong = (0..ROW).find(|&place| row[place] != byte(sample, place));
        assert_eq!(wrong, None, "sample {sample}: first wrong byte");
    }
}

fn order(epoch: u64) -> Vec<u64> {
    let sampler = RandomSampler::with_seed(LEN, 5);
    (0..LEN)
        .map(|position| sampler.index(epoch, position))
        .collect()
}

fn registered_rows_go_from_where_they_lie(backend: &Backend) {
    let device = &backend.device;
    for workers in [0, 1, 4] {
        let loader = DataLoader::builder(registered(device))
            .batch_size(16)
            .shuffle(true)
            .seed(5)
            .num_workers(workers)
            .pin_memory(device)
            .build()
            .unwrap();
        for epoch in 0..3 {
            let batches = loader.epoch(epoch).prefetch_to_device(device, 2);
            for (batch, samples) in batches.zip(order(epoch).chunks(16)) {
                let (images, labels) = batch.unwrap();
                check(&images, samples);
                let labels = labels.to_host(true).unwrap().wait().unwrap();
                assert!(
                    labels
                        .as_slice()
                        .iter()
                        .zip(samples)
                        .all(|(one, other)| *one as u64 == *other)
                );
            }
            let stats = loader.stats();
            assert_eq!(stats.unpinned.count, 0);
            if epoch > 0 {
                // The rows and the labels of each batch; were they copied on the host, they would travel as one.
                assert_eq!(stats.transfers.count, 2 * 13, "workers {workers}");
            }
        }
        // Who asks for host batches gets them, whole.
        for (batch, samples) in loader.epoch(0).zip(order(0).chunks(16)) {
            let (images, _) = batch.unwrap();
            assert!(images.is_pinned());
            check(&images.to_device(device, true).unwrap(), samples);
        }
    }
}

/// Rows at and beside the boundaries of 16 bytes and of 64 KiB, of few and of many bytes.
pub fn rows_of_any_length_arrive(backend: &Backend) {
    let device = &backend.device;
    for (rows, row) in [
        (37, 16 << 10),
        (37, 65_536),
        (9, 65_552),
        (9, 131_071),
        (2, 1 << 20),
    ] {
        let bytes = (0..rows * row).map(|place| byte((place / row) as u64, place % row));
        let images = Tensor::from_vec(bytes.collect(), &[rows, row]).unwrap();
        let source = images.to_vec();
        let loader =
            DataLoader::builder(TensorDataset::new(images.register(device).unwrap()).unwrap())
                .batch_size(4)
                .num_workers(1)
                .pin_memory(device)
                .build()
                .unwrap();
        let batches = loader.epoch(0).prefetch_to_device(device, 2);
        for (batch, expected) in batches.zip(source.chunks(4 * row)) {
            let there = batch.unwrap().to_host(true).unwrap().wait().unwrap();
            assert!(there.as_slice() == expected, "rows of {row} bytes");
        }
    }
}

fn rows_from_elsewhere_mix_with_registered_ones(backend: &Backend) {
    let device = &backend.device;
    for workers in [0, 3] {
        // Every fifth sample is a tensor of its own, and the first of a batch may be one.
        let dataset = registered(device).map(|(image, label), _| match label.as_slice()[0] % 5 {
            0 => Ok((Tensor::from_vec(image.to_vec(), &[ROW])?, label)),
            _ => Ok((image, label)),
        });
        let loader = DataLoader::builder(dataset)
            .batch_size(4)
            .shuffle(true)
            .seed(5)
            .num_workers(workers)
            .pin_memory(device)
            .build()
            .unwrap();
        for epoch in 0..3 {
            let batches = loader.epoch(epoch).prefetch_to_device(device, 1);
            for (batch, samples) in batches.zip(order(epoch).chunks(4)) {
                check(&batch.unwrap().0, samples);
            }
        }
        assert_eq!(loader.stats().unpinned.count, 0);
    }
}

/// A batch that looks at its bytes on its way, and at two moments.
struct Watched(Tensor<u8>, bool);

struct WatchedSample(Tensor<u8>, bool);

impl Sample for WatchedSample {
    type Batch = Watched;
    type Plan = Field<u8>;
    type Rest = bool;

    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        Tensor::plan(samples.map(|sample| &sample.0), layout)
    }

    fn fill(self, plan: &Field<u8>, row: &mut Row<'_>) -> Result<bool, CollateError> {
        row.take(plan, self.0)?;
        Ok(self.1)
    }

    fn finish(plan: Field<u8>, rest: Vec<bool>, filled: &mut Filled) -> Watched {
        Watched(filled.take(plan), rest[0])
    }
}

impl Batch for Watched {
    type OnDevice = (u64, DeviceTensor<u8>);

    fn tensors(&self, visit: &mut Tensors<'_>) {
        if self.1 {
            assert_eq!(self.0.as_slice()[1], self.0.row(0).as_slice()[1]);
        }
        visit.add(&self.0);
    }

    fn relocate(self, slab: &mut Relocation) -> Self {
        Watched(slab.tensor(self.0), self.1)
    }

    fn upload(self, upload: &mut Upload) -> Self::OnDevice {
        // Showing the tensor does not gather its rows: then they would no longer be page-locked.
        let (elsewhere, shown) = (self.0.is_pinned(), format!("{:?}", self.0));
        assert_eq!(shown.ends_with("values: [..] }"), elsewhere, "{shown}");
        assert_eq!(self.0.is_pinned(), elsewhere);
        let sum = self.0.as_slice().iter().map(|&byte| u64::from(byte)).sum();
        (sum, upload.tensor(self.0))
    }
}

fn a_batch_of_ones_own_reads_gathered_rows(backend: &Backend) {
    let device = &backend.device;
    let images = images().register(device).unwrap();
    let dataset = TensorDataset::new(images)
        .unwrap()
        .map(|image, rng| Ok(WatchedSample(image, rng.bool(0.5))));
    let loader: DataLoader<Watched> = DataLoader::builder(dataset)
        .batch_size(7)
        .shuffle(true)
        .seed(5)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    for epoch in 0..2 {
        let batches = loader.epoch(epoch).prefetch_to_device(device, 2);
        for (batch, samples) in batches.zip(order(epoch).chunks(7)) {
            let (sum, there) = batch.unwrap();
            check(&there, samples);
            let bytes = samples
                .iter()
                .flat_map(|&sample| (0..ROW).map(move |place| u64::from(byte(sample, place))));
            assert_eq!(sum, bytes.sum::<u64>());
        }
    }
}

/// Fills its row by halves, or takes it whole, or takes it and changes it then.
struct Own(Tensor<u8>, u64);

impl Sample for Own {
    type Batch = Tensor<u8>;
    type Plan = Field<u8>;
    type Rest = ();

    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        Tensor::plan(samples.map(|sample| &sample.0), layout)
    }

    fn fill(self, plan: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
        let Own(image, way) = self;
        match way {
            0 => row.take(plan, image),
            1 => row.write(plan, image.as_slice()),
            2 => {
                let (left, right) = image.as_slice().split_at(ROW / 2);
                row.slice_mut(plan)?[..ROW / 2].copy_from_slice(left);
                row.slice_mut(plan)?[ROW / 2..].copy_from_slice(right);
                Ok(())
            }
            _ => {
                let first = image.as_slice()[0];
                row.take(plan, image)?;
                let target = row.slice_mut(plan)?;
                target[0] = first.wrapping_add(1);
                target[0] = first;
                Ok(())
            }
        }
    }

    fn finish(plan: Field<u8>, _: Vec<()>, filled: &mut Filled) -> Tensor<u8> {
        filled.take(plan)
    }
}

fn a_sample_of_ones_own_writes_where_others_are_gathered(backend: &Backend) {
    let device = &backend.device;
    let images = images().register(device).unwrap();
    let source = images.view();
    let dataset = TensorDataset::new(images)
        .unwrap()
        .map(|image, rng| Ok(Own(image, rng.below(4))));
    let loader = DataLoader::builder(dataset)
        .batch_size(5)
        .shuffle(true)
        .seed(5)
        .num_workers(3)
        .pin_memory(device)
        .build()
        .unwrap();
    for epoch in 0..3 {
        let batches = loader.epoch(epoch).prefetch_to_device(device, 1);
        for (batch, samples) in batches.zip(order(epoch).chunks(5)) {
            check(&batch.unwrap(), samples);
        }
    }
    // A row that was taken and then changed, was changed in a copy.
    let bytes = (0..LEN).flat_map(|sample| (0..ROW).map(move |place| byte(sample, place)));
    assert!(source.as_slice().iter().copied().eq(bytes));
}

/// Every way to fill a row, and to look at it: few enough for Miri.
fn a_few_rows_are_gathered(backend: &Backend) {
    let device = &backend.device;
    const ROWS: usize = 5;
    let source: Vec<u8> = (0..ROWS)
        .flat_map(|row| [row as u8; ROW].into_iter().enumerate())
        .map(|(place, row)| row ^ place as u8)
        .collect();
    for workers in [0, 1] {
        for ways in [[0; ROWS], [0, 3, 0, 1, 2]] {
            let images = Tensor::from_vec(source.clone(), &[ROWS, ROW]).unwrap();
            let images = images.register(device).unwrap();
            let first = images.as_slice().as_ptr() as usize;
            let dataset = TensorDataset::new(images).unwrap().map(move |image, _| {
                let row = (image.as_slice().as_ptr() as usize - first) / ROW;
                Ok(Own(image, ways[row]))
            });
            let loader = DataLoader::builder(dataset)
                .batch_size(2)
                .num_workers(workers)
                .pin_memory(device)
                .build()
                .unwrap();
            let batches = loader.epoch(0).prefetch_to_device(device, 1);
            for (batch, expected) in batches.zip(source.chunks(2 * ROW)) {
                let there = batch.unwrap().to_host(true).unwrap().wait().unwrap();
                assert!(there.as_slice() == expected);
            }
        }
    }
}

fn registered_memory_outlives_its_loader(backend: &Backend) {
    let device = &backend.device;
    for wait in [false, true] {
        let loader = DataLoader::builder(registered(device))
            .batch_size(16)
            .shuffle(true)
            .seed(5)
            .num_workers(2)
            .pin_memory(device)
            .build()
            .unwrap();
        drop(loader.epoch(0).prefetch_to_device(device, 1).next());
        let mut epoch = loader.epoch(1).prefetch_to_device(device, 3);
        let batches: Vec<_> = epoch.by_ref().take(3).map(Result::unwrap).collect();
        drop(epoch);
        drop(loader);
        if wait {
            for ((images, _), samples) in batches.iter().zip(order(1).chunks(16)) {
                check(images, samples);
            }
        }
    }
}

/// A file in memory, read-only.
#[cfg(target_os = "linux")]
struct Mapped(*mut libc::c_void, usize);

// SAFETY: the mapping is only read, and lives as long as this.
#[cfg(target_os = "linux")]
unsafe impl Send for Mapped {}
// SAFETY: as above.
#[cfg(target_os = "linux")]
unsafe impl Sync for Mapped {}

#[cfg(target_os = "linux")]
impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the mapping has as many bytes, and nobody writes the file.
        unsafe { std::slice::from_raw_parts(self.0.cast(), self.1) }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with as many bytes.
        assert_eq!(unsafe { libc::munmap(self.0, self.1) }, 0);
    }
}

#[cfg(target_os = "linux")]
fn a_mapped_file_goes_from_where_it_lies(backend: &Backend, sharing: libc::c_int) {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    let device = &backend.device;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(images().as_slice()).unwrap();
    let bytes = LEN as usize * ROW;
    let (protection, flags) = (libc::PROT_READ, sharing | libc::MAP_POPULATE);
    // SAFETY: a new mapping of an open file, as long as that.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            protection,
            flags,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(map, libc::MAP_FAILED);
    let mut images = Tensor::<u8>::from_owner(Mapped(map, bytes), &[LEN as usize, ROW]).unwrap();
    assert!(images.as_mut_slice().is_none(), "it is never written");
    let images = match images.register(device) {
        Ok(images) => images,
        // Not every device and mapping can: then it says so.
        Err(error) => {
            let words = ["map the file shared", "copy it into a tensor"];
            assert!(
                words.iter().any(|word| error.to_string().contains(word)),
                "{error}"
            );
            return;
        }
    };
    let loader = DataLoader::builder(TensorDataset::new(images).unwrap())
        .batch_size(16)
        .shuffle(true)
        .seed(5)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    let batches = loader.epoch(0).prefetch_to_device(device, 2);
    for (batch, samples) in batches.zip(order(0).chunks(16)) {
        check(&batch.unwrap(), samples);
    }
}

/// A safetensors file that is page-locked as a whole, and windows of its tokens.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "it maps files that nothing writes")]
fn arrays_of_a_mapped_file_go_from_where_they_lie(backend: &Backend) {
    use pinfeed::arrays::{self, FileBytes, TokenFile};

    let device = &backend.device;
    let folder = tempfile::tempdir().unwrap();
    let (pixels, numbers) = (LEN as usize * ROW, LEN as usize * 8);
    let header = format!(
        r#"{{"labels":{{"dtype":"I64","shape":[{LEN}],"data_offsets":[0,{numbers}]}},"images":{{"dtype":"U8","shape":[{LEN},{ROW}],"data_offsets":[{numbers},{}]}}}}"#,
        numbers + pixels
    );
    let header = format!("{header:<192}");
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(
        labels()
            .as_slice()
            .iter()
            .flat_map(|label| label.to_le_bytes()),
    );
    file.extend(images().as_slice());
    let path = folder.path().join("images.safetensors");
    std::fs::write(&path, &file).unwrap();
    // SAFETY: nothing writes it.
    let file = match unsafe { FileBytes::map(&path) }.unwrap().register(device) {
        Ok(file) => file,
        // Not every device can: then it says so.
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("copy it into a tensor"), "{error}");
            println!("not registered: {error}");
            return;
        }
    };
    let arrays = arrays::safetensors(file).unwrap();
    let images = arrays.tensor::<u8>("images").unwrap();
    let table = TensorDataset::new((images, arrays.tensor::<i64>("labels").unwrap())).unwrap();
    let loader = DataLoader::builder(table)
        .batch_size(16)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    let mut seen = 0;
    for batch in loader.epoch(0).prefetch_to_device(device, 2) {
        let (images, labels) = batch.unwrap();
        let labels = labels.to_host(true).unwrap().wait().unwrap();
        let samples: Vec<u64> = labels
            .as_slice()
            .iter()
            .map(|label| *label as u64)
            .collect();
        check(&images, &samples);
        seen += samples.len() as u64;
    }
    assert_eq!(seen, LEN);
    drop((arrays, loader));

    const N: usize = 9_000; // 18,000 bytes: long enough to be gathered
    let path = folder.path().join("train.bin");
    let tokens: Vec<u8> = (0..12 * N as u32)
        .flat_map(|token| (token as u16).to_le_bytes())
        .collect();
    std::fs::write(&path, tokens).unwrap();
    // SAFETY: nothing writes it.
    let file = unsafe { FileBytes::map(&path) }
        .unwrap()
        .register(device)
        .unwrap();
    let windows = TokenFile::<u16>::raw(file).unwrap().windows(N).unwrap();
    let windows = windows.with_stride(N as u64 / 3).unwrap();
    let loader = DataLoader::builder(windows)
        .batch_size(4)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    let mut place = 0;
    for batch in loader.epoch(0).prefetch_to_device(device, 2) {
        let (x, y) = batch.unwrap();
        let (x, y) = (
            x.to_host(true).unwrap().wait().unwrap(),
            y.to_host(true).unwrap().wait().unwrap(),
        );
        for (x, y) in x.as_slice().chunks(N).zip(y.as_slice().chunks(N)) {
            let expected = |first: usize| (first..first + N).map(|token| token as u16);
            assert!(
                x.iter().copied().eq(expected(place)) && y.iter().copied().eq(expected(place + 1))
            );
            place += N / 3;
        }
    }
    assert_eq!(place, 33 * (N / 3));
}
