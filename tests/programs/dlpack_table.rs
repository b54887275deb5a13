//! A table that another library made becomes a data set, without a copy: its deleter is called when the last batch of its rows is made.

#![allow(unsafe_code)] // DLPack is a struct of pointers

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinfeed::interop::dlpack::{DLDevice, DLManagedTensorVersioned, Exported, Imported};
use pinfeed::tensor::DType;
use pinfeed::{DataLoader, TensorDataset};

/// Stands for the library's array: numbers, and whether they are gone.
struct Array {
    numbers: Vec<f32>,
    is_gone: Arc<AtomicBool>,
}

impl Drop for Array {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::SeqCst);
    }
}

/// What the library's `__dlpack__` gives.
fn exported(array: Array, shape: &[usize]) -> pinfeed::Result<*mut DLManagedTensorVersioned> {
    let array = Box::new(array);
    let data = array.numbers.as_ptr().cast_mut().cast();
    // SAFETY: as many numbers are there as long as the array lives; nobody writes them, which is flagged.
    let exported = unsafe {
        Exported::from_raw_parts(
            data,
            DLDevice::CPU,
            DType::F32.into(),
            shape,
            DLManagedTensorVersioned::READ_ONLY,
            array,
        )
    }?;
    Ok(exported.into_versioned())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let is_gone = Arc::new(AtomicBool::new(false));
    let array = Array {
        numbers: (0..4_000).map(|number| number as f32).collect(),
        is_gone: Arc::clone(&is_gone),
    };
    let managed = exported(array, &[1_000, 4])?;

    // SAFETY: it is the library's struct, which nobody else uses; nobody writes the numbers.
    let table = unsafe { Imported::from_versioned(managed) }?;
    println!("{:?} of {} in {}", table.shape(), table.dtype(), table.device());
    let table = TensorDataset::new((table.into_host::<f32>()?,))?;
    let loader = DataLoader::builder(table).batch_size(100).shuffle(true).num_workers(2).build()?;
    let mut sum = 0.0;
    for epoch in loader.epochs(0..3) {
        for batch in epoch {
            let (batch,) = batch?;
            sum += batch.as_slice().iter().sum::<f32>();
        }
    }
    assert_eq!(sum, 3.0 * 3_999.0 * 4_000.0 / 2.0);
    assert!(!is_gone.load(Ordering::SeqCst));
    drop(loader);
    assert!(is_gone.load(Ordering::SeqCst));
    Ok(())
}
