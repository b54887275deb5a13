//! A table that Python wrote by `numpy.savez("table.npz", x=x, y=y)`, learned from by gradient descent.

use std::error::Error;
use std::path::Path;

use pinfeed::{DataLoader, Dataset, Device, TensorDataset, arrays};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/arrays");
    let file = arrays::npz(folder.join("stored.npz"))?;
    for name in file.names() {
        match file.array(name) {
            Ok(array) => println!("{name}: {} of {}", array.shape(), array.dtype()),
            Err(error) => println!("{error}"), // text and objects, which tensors do not have
        }
    }
    let (x, y) = (file.tensor::<f32>("x")?, file.tensor::<i64>("y")?);
    assert_eq!((&x.shape()[..], &y.shape()[..]), (&[5, 3][..], &[5][..]));
    let target: Vec<f32> = x.as_slice().chunks(3).map(|x| 2.0 * x[0] - x[2]).collect();

    // The table's own rows, and a target that the program makes of them.
    let table = TensorDataset::new((x, y))?.zip(target)?;
    let device = Device::cpu();
    let loader = DataLoader::builder(table).batch_size(2).shuffle(true).num_workers(2).pin_memory(&device).build()?;
    let mut model = [0.0f32; 3];
    let mut loss = f32::INFINITY;
    for epoch in loader.epochs(0..2_000).prefetch_to_device(&device, 2) {
        loss = 0.0;
        for batch in epoch {
            let ((x, _), target) = batch?;
            let (x, target) = (x.to_host(true)?.wait()?, target.to_host(true)?.wait()?);
            for (x, target) in x.as_slice().chunks(3).zip(target.as_slice()) {
                let error = model.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() - target;
                model.iter_mut().zip(x).for_each(|(w, x)| *w -= 0.05 * error * x);
                loss += error * error;
            }
        }
    }
    println!("{model:?}: loss {loss:e}");
    assert!(loss < 1e-6);

    let Err(error) = file.tensor::<f64>("x") else {
        return Err("x is f32".into());
    };
    assert!(error.to_string().ends_with("stored.npz: array `x`: its elements are f32, and were asked for as f64"));
    Ok(())
}
