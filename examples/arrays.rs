//! Learns from files of arrays. Without arguments it writes two, as `pandas.to_csv` and `numpy.save` do: a table of flowers, and pictures. Or name files
//! of yours, to see what is in them: .csv, .npy, .npz, .safetensors, or IDX (MNIST's), also compressed by gzip.
//!
//!     cargo run --release --features arrays --example arrays
//!     cargo run --release --features arrays --example arrays -- iris.csv t10k-images-idx3-ubyte.gz weights.safetensors

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use pinfeed::dataset::Subset;
use pinfeed::prelude::*;
use pinfeed::rng::RngKey;
use pinfeed::{Device, arrays};

const FLOWERS: usize = 300;
const KINDS: [&str; 3] = ["setosa", "versicolor", "virginica"];
const COLUMNS: [&str; 2] = ["petal_length", "petal_width"];
/// Pictures of 8 by 8 pixels, each of which has one light quarter.
const PICTURES: usize = 400;
const SIDE: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if !given.is_empty() {
        return given.iter().try_for_each(|path| look(path));
    }
    let folder = std::env::temp_dir().join(format!("pinfeed-arrays-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let learned = write(&folder).and_then(|()| {
        flowers(&folder.join("flowers.csv"))?;
        pictures(&folder.join("pictures.npy"), &folder.join("quarters.npy"))
    });
    fs::remove_dir_all(&folder)?;
    learned
}

/// Prints what a file has.
fn look(path: &Path) -> Result<(), Box<dyn Error>> {
    let name = path.to_string_lossy().to_lowercase();
    let named = match name {
        name if name.ends_with(".csv") => {
            let table = arrays::csv(path)?;
            println!(
                "{}: {} rows of {:?}",
                path.display(),
                table.rows(),
                table.names()
            );
            return Ok(());
        }
        name if name.ends_with(".npz") => arrays::npz(path)?,
        name if name.ends_with(".safetensors") => arrays::safetensors(path)?,
        name => {
            let array = match name.ends_with(".npy") {
                true => arrays::npy(path)?,
                false => arrays::idx(path)?,
            };
            println!("{}: {} of {}", path.display(), array.shape(), array.dtype());
            return Ok(());
        }
    };
    for name in named.names() {
        match named.array(name) {
            Ok(array) => println!(
                "{}: {name}: {} of {}",
                path.display(),
                array.shape(),
                array.dtype()
            ),
            Err(error) => println!("{error}"), // text and objects, which tensors do not have
        }
    }
    Ok(())
}

/// Which kind a flower is, by its petals: every fifth is kept to be asked.
fn flowers(path: &Path) -> Result<(), Box<dyn Error>> {
    let table = arrays::csv(path)?;
    let features = table.columns::<f32>(&COLUMNS)?; // [300, 2]
    let kinds = table.classes("kind", &KINDS)?; // [300]
    println!(
        "{}: {} rows of {:?}",
        path.display(),
        table.rows(),
        table.names()
    );
    let (train, valid): (Vec<u64>, Vec<u64>) = (0..FLOWERS as u64).partition(|row| row % 5 != 0);
    let loader = |rows: Vec<u64>, is_training: bool| -> pinfeed::Result<_> {
        let table = TensorDataset::new((features.view(), kinds.view()))?; // shares the memory
        let builder = DataLoader::builder(Subset::new(table, rows)?)
            .batch_size(20)
            .seed(17);
        builder.shuffle(is_training).num_workers(1).build()
    };
    let (train, valid) = (loader(train, true)?, loader(valid, false)?);
    let mut model = Linear::new(2, KINDS.len());
    for epoch in train.epochs(0..60) {
        for batch in epoch {
            let (features, kinds) = batch?; // [20, 2] and [20]
            let rows = features.as_slice().chunks(2);
            rows.zip(kinds.as_slice())
                .for_each(|(row, kind)| model.learn(row, *kind as usize));
        }
    }
    let mut right = 0;
    for batch in &valid {
        let (features, kinds) = batch?;
        let rows = features.as_slice().chunks(2).zip(kinds.as_slice());
        right += rows
            .filter(|(row, kind)| model.best(row) == **kind as usize)
            .count();
    }
    println!("{right} of {} flowers are told apart", FLOWERS / 5);
    Ok(())
}

/// Which quarter of a picture is light: pictures and labels are two files.
fn pictures(pictures: &Path, quarters: &Path) -> Result<(), Box<dyn Error>> {
    let (pictures, quarters) = (arrays::npy(pictures)?, arrays::npy(quarters)?);
    println!("pictures: {} of {}", pictures.shape(), pictures.dtype());
    let table = TensorDataset::new((pictures.tensor::<u8>()?, quarters.tensor::<i64>()?))?;
    let device = Device::available(); // the first CUDA device, or the CPU
    let loader = DataLoader::builder(table)
        .batch_size(50)
        .shuffle(true)
        .num_workers(1)
        .pin_memory(&device)
        .build()?;
    let mut model = Linear::new(SIDE * SIDE, 4);
    let mut right = 0;
    for epoch in loader.epochs(0..10).prefetch_to_device(&device, 2) {
        right = 0;
        for batch in epoch {
            let (pictures, quarters) = batch?; // [50, 8, 8] and [50], on the device
            let (pictures, quarters) = (
                pictures.to_host(true)?.wait()?,
                quarters.to_host(true)?.wait()?,
            );
            for (pixels, quarter) in pictures
                .as_slice()
                .chunks(SIDE * SIDE)
                .zip(quarters.as_slice())
            {
                let row: Vec<f32> = pixels
                    .iter()
                    .map(|pixel| f32::from(*pixel) / 255.0)
                    .collect();
                right += usize::from(model.best(&row) == *quarter as usize);
                model.learn(&row, *quarter as usize);
            }
        }
    }
    println!("{right} of {PICTURES} pictures are told apart");
    Ok(())
}

/// As many weights for each class as a row has numbers, and one more.
struct Linear {
    classes: Vec<Vec<f32>>,
}

impl Linear {
    fn new(width: usize, classes: usize) -> Linear {
        Linear {
            classes: vec![vec![0.0; width + 1]; classes],
        }
    }

    fn score(&self, class: usize, row: &[f32]) -> f32 {
        let weights = &self.classes[class];
        row.iter()
            .zip(weights)
            .map(|(x, weight)| x * weight)
            .sum::<f32>()
            + weights[row.len()]
    }

    fn best(&self, row: &[f32]) -> usize {
        let classes = 0..self.classes.len();
        classes
            .max_by(|one, other| self.score(*one, row).total_cmp(&self.score(*other, row)))
            .unwrap_or(0)
    }

    /// A step of softmax regression.
    fn learn(&mut self, row: &[f32], class: usize) {
        let scores: Vec<f32> = (0..self.classes.len())
            .map(|class| self.score(class, row).exp())
            .collect();
        let sum: f32 = scores.iter().sum();
        for (at, (weights, score)) in self.classes.iter_mut().zip(scores).enumerate() {
            let slope = score / sum - f32::from(u8::from(at == class));
            let row = row.iter().chain(&[1.0]);
            weights
                .iter_mut()
                .zip(row)
                .for_each(|(weight, x)| *weight -= 0.05 * slope * x);
        }
    }
}

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 1,
        epoch: 0,
        position: 0,
    });
    let mut csv = String::from("petal_length,petal_width,kind\n");
    for at in 0..FLOWERS {
        let (kind, [length, width]) = (KINDS[at % 3], [[1.5, 0.2], [4.2, 1.3], [5.6, 2.1]][at % 3]);
        let mut near = |value: f32| value + 0.4 * (rng.f32() - 0.5);
        writeln!(csv, "{:.2},{:.2},{kind}", near(length), near(width))?;
    }
    fs::write(folder.join("flowers.csv"), csv)?;

    let (mut pixels, mut quarters) = (Vec::new(), Vec::new());
    for at in 0..PICTURES {
        let (right, lower) = (at % 2 == 1, at % 4 > 1);
        for place in 0..SIDE * SIDE {
            let is_light =
                (place % SIDE >= SIDE / 2) == right && (place / SIDE >= SIDE / 2) == lower;
            pixels.push(if is_light { 155 } else { 0 } + (rng.f32() * 100.0) as u8);
        }
        quarters.extend_from_slice(&((at % 4) as i64).to_le_bytes());
    }
    npy(&folder.join("pictures.npy"), "|u1", "(400, 8, 8)", &pixels)?;
    npy(&folder.join("quarters.npy"), "<i8", "(400,)", &quarters)
}

/// What `numpy.save` writes: a header of a multiple of 64 bytes, and then the elements.
fn npy(path: &Path, of: &str, shape: &str, elements: &[u8]) -> Result<(), Box<dyn Error>> {
    let header = format!("{{'descr': '{of}', 'fortran_order': False, 'shape': {shape}, }}");
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    file.extend_from_slice(format!("{header:<117}\n").as_bytes());
    file.extend_from_slice(elements);
    Ok(fs::write(path, file)?)
}
