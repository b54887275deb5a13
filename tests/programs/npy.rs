//! Arrays that Python wrote by `numpy.save`, used where they lie: tensors over the files' own bytes.

use std::error::Error;
use std::path::Path;

use pinfeed::tensor::Element;
use pinfeed::{DataLoader, Device, Tensor, TensorDataset};

/// A file's bytes, which begin where any number may. A `memmap2::Mmap` does as well, and is read as far as it is used.
struct File {
    bytes: Vec<u8>,
    begin: usize,
}

impl File {
    fn read(path: &Path) -> std::io::Result<File> {
        let content = std::fs::read(path)?;
        let mut bytes: Vec<u8> = Vec::with_capacity(content.len() + 64);
        let begin = bytes.as_ptr().align_offset(64);
        bytes.resize(begin, 0);
        bytes.extend(content); // there is room: it stays where it is
        Ok(File { bytes, begin })
    }
}

impl AsRef<[u8]> for File {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }
}

/// Opens an array of a known type and shape. (A crate such as `npyz` reads any header.)
fn open<T: Element>(path: &Path, descr: &str, shape: &[usize]) -> Result<Tensor<T>, Box<dyn Error>> {
    let file = File::read(path)?;
    let bytes = file.as_ref();
    if !bytes.starts_with(b"\x93NUMPY\x01") {
        return Err(format!("{} is not an .npy file of version 1", path.display()).into());
    }
    let data = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = str::from_utf8(&bytes[10..data])?;
    // Rows behind each other, not columns; and numbers that this machine takes as they are.
    if !header.contains("'fortran_order': False") || !header.contains(&format!("'{descr}'")) {
        return Err(format!("{} has other elements: {header}", path.display()).into());
    }
    Ok(Tensor::from_owner_at(file, data, shape)?)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let (features, labels) = (folder.path().join("x.npy"), folder.path().join("y.npy"));
    let numbers: Vec<u8> = (0..60u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    save(&features, "<f4", "(12, 5)", &numbers)?;
    let numbers: Vec<u8> = (0..12i64).flat_map(i64::to_le_bytes).collect();
    save(&labels, "<i8", "(12,)", &numbers)?;

    let x = open::<f32>(&features, "<f4", &[12, 5])?;
    let y = open::<i64>(&labels, "<i8", &[12])?;
    let Err(wrong) = open::<f32>(&features, "<f4", &[13, 5]) else {
        return Err("there are 12 rows".into());
    };
    println!("{wrong}"); // it takes 260 bytes from byte 128 on, and there are 368 in all
    assert!(wrong.to_string().contains("takes 260 bytes"));

    let device = Device::cpu();
    let loader = DataLoader::builder(TensorDataset::new((x, y))?)
        .batch_size(5)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        let mut seen = 0;
        for batch in epoch {
            let (x, y) = batch?;
            let (x, y) = (x.to_host(true)?.wait()?, y.to_host(true)?.wait()?);
            for (x, y) in x.as_slice().chunks(5).zip(y.as_slice()) {
                assert_eq!(x[0], 5.0 * *y as f32);
            }
            seen += y.len();
        }
        assert_eq!(seen, 12);
    }
    Ok(())
}

/// What `numpy.save` writes: a header that ends at a multiple of 64 bytes, and the numbers.
fn save(path: &Path, descr: &str, shape: &str, numbers: &[u8]) -> std::io::Result<()> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    file.extend(format!("{header:<117}\n").bytes());
    file.extend(numbers);
    std::fs::write(path, file)
}
