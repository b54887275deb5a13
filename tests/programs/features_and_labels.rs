//! Features that another program computed, in a safetensors file, and a CSV file of what they show: a nearest-mean classifier, that is stopped in
//! the middle of its epoch and goes on.

use std::error::Error;
use std::fs;
use std::path::Path;

use pinfeed::dataset::random_split;
use pinfeed::{DataLoader, Dataset, TensorDataset, arrays};

const CLASSES: [&str; 3] = ["setosa", "versicolor", "virginica"];
const ROWS: usize = 90;

/// As `safetensors.numpy.save_file({"features": x}, "features.safetensors")` and `csv.writer` write them.
fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    let (mut features, mut table) = (Vec::new(), "flower,species,remark\n".to_owned());
    for row in 0..ROWS {
        let class = row % 3;
        for place in 0..4 {
            let value = if place == class { 4.0 } else { 0.0 } + (row * 7 % 10) as f32 / 10.0;
            features.extend(value.to_le_bytes());
        }
        table += &format!("{row},{},\"seen, and drawn\"\n", CLASSES[class]);
    }
    let header = format!(r#"{{"features":{{"dtype":"F32","shape":[{ROWS},4],"data_offsets":[0,{}]}}}}"#, features.len());
    let header = format!("{header:<96}");
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &features].concat();
    fs::write(folder.join("features.safetensors"), file)?;
    fs::write(folder.join("species.csv"), table)?;
    Ok(())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let features = arrays::safetensors(folder.path().join("features.safetensors"))?.tensor::<f32>("features")?;
    let species = arrays::csv(folder.path().join("species.csv"))?.classes("species", &CLASSES)?;
    let table = TensorDataset::new((features, species))?;
    let mut parts = random_split(table, &[0.8, 0.2], 5)?.into_iter();
    let (Some(train), Some(valid)) = (parts.next(), parts.next()) else {
        return Err("two parts".into());
    };

    let loader = DataLoader::builder(train).batch_size(16).shuffle(true).seed(1).num_workers(2).build()?;
    let (mut sums, mut counts) = ([[0f32; 4]; 3], [0f32; 3]);
    let mut learn = |(features, species): (pinfeed::Tensor<f32>, pinfeed::Tensor<i64>)| {
        for (row, class) in features.as_slice().chunks(4).zip(species.as_slice()) {
            let class = *class as usize;
            sums[class].iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            counts[class] += 1.0;
        }
    };
    for batch in loader.epoch(0).take(2) {
        learn(batch?);
    }
    let checkpoint = loader.state().to_string();
    for epoch in loader.resume(0..1, &checkpoint.parse()?)? {
        for batch in epoch {
            learn(batch?);
        }
    }
    assert_eq!(counts.iter().sum::<f32>(), 72.0, "each row of the larger part once");

    let (mut right, all) = (0, valid.len());
    for batch in &DataLoader::builder(valid).batch_size(10).build()? {
        let (features, species) = batch?;
        for (row, class) in features.as_slice().chunks(4).zip(species.as_slice()) {
            let away = |class: usize| -> f32 {
                row.iter().zip(sums[class]).map(|(value, sum)| (value - sum / counts[class]).powi(2)).sum()
            };
            let nearest = (0..3).min_by(|a, b| away(*a).total_cmp(&away(*b)));
            right += usize::from(nearest == Some(*class as usize));
        }
    }
    println!("{right} of {all}");
    assert_eq!((right, all), (18, 18));

    // What is not there says what is.
    let Err(error) = arrays::csv(folder.path().join("species.csv"))?.classes("species", &CLASSES[..2]) else {
        return Err("virginica is none of these".into());
    };
    assert!(error.to_string().contains("species.csv") && error.to_string().contains("virginica"), "{error}");
    Ok(())
}
