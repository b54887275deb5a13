//! ndarray: the rows of an array as a data set, and batches as arrays again.

use std::error::Error;

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis};
use pinfeed::{DataLoader, Tensor, TensorDataset, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let features = Array2::from_shape_fn((100, 3), |(row, column)| (10 * row + column) as f32);
    let targets = Array1::from_shape_fn(100, |row| row as i64);
    let means = features.mean_axis(Axis(0)).ok_or("there are rows")?;

    // Row by row: any array will do, also one that does not lie in one piece.
    let (x, y) = (features.clone(), targets.clone());
    let rows = from_fn(x.nrows(), move |index, _| {
        let index = index as usize;
        Ok((x.row(index).to_vec(), y[index]))
    });
    let loader = DataLoader::builder(rows)
        .batch_size(25)
        .shuffle(true)
        .num_workers(2)
        .build()?;
    let mut sums = Array1::<f32>::zeros(3);
    for batch in &loader {
        let (x, y) = batch?;
        let (x, y) = (matrix(&x)?, ArrayView1::from(y.as_slice()));
        assert_eq!(x.dim(), (25, 3));
        assert!(x.outer_iter().zip(y).all(|(row, y)| row[0] == 10.0 * *y as f32));
        sums += &x.sum_axis(Axis(0));
    }
    assert_eq!(sums / 100.0, means);

    // All at once: the arrays become tensors without a copy, and their rows are the samples.
    let shape = [features.nrows(), features.ncols()];
    let (x, _) = features.into_raw_vec_and_offset();
    let (y, _) = targets.into_raw_vec_and_offset();
    let rows = TensorDataset::new((Tensor::from_vec(x, &shape)?, Tensor::from(y)))?;
    let loader = DataLoader::builder(rows).batch_size(100).build()?;
    for batch in &loader {
        let (x, _y) = batch?;
        assert_eq!(matrix(&x)?.mean_axis(Axis(0)), Some(means.clone()));
    }
    Ok(())
}

/// A batch of rows, as a view: nothing is copied.
fn matrix(tensor: &Tensor<f32>) -> Result<ArrayView2<'_, f32>, Box<dyn Error>> {
    let shape = (tensor.shape()[0], tensor.shape()[1]);
    Ok(ArrayView2::from_shape(shape, tensor.as_slice())?)
}
