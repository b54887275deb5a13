//! Bytes, whatever they are, become arrays, a table or tokens by each of the functions that read them, or errors; nothing else happens.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pinfeed::arrays::{self, Array, Arrays, FileBytes, TokenFile};
use pinfeed::tensor::{DType, Element};
use pinfeed::{Dataset, Result};

fuzz_target!(|bytes: &[u8]| {
    let file = || FileBytes::new("some/file", bytes.to_vec()).expect("any bytes will do");
    check(arrays::npy(file()).and_then(|array| read(&array)));
    check(arrays::idx(file()).and_then(|array| read(&array)));
    check(arrays::npz(file()).map(|arrays| all(&arrays)));
    check(arrays::safetensors(file()).map(|arrays| all(&arrays)));
    check(arrays::csv(file()).map(|table| {
        for name in table.names() {
            if let Ok(column) = table.column::<f64>(name) {
                assert_eq!(column.len(), table.rows());
            }
        }
    }));
    check(TokenFile::<u16>::raw(file()).and_then(|file| tokens(&file)));
    check(TokenFile::<u16>::llm_c(file()).and_then(|file| tokens(&file)));
    // An index of as many tokens as the file has bytes, and of none.
    for bin in [bytes.to_vec(), Vec::new()] {
        let bin = FileBytes::new("some/file.bin", bin).expect("any bytes will do");
        check(TokenFile::<u8>::megatron(bin, file()).and_then(|file| tokens(&file)));
    }
});

fn check(result: Result<()>) {
    if let Err(error) = result {
        assert!(error.to_string().contains("some/file"), "{error}");
    }
}

fn all(arrays: &Arrays) {
    for name in arrays.names() {
        check(arrays.array(name).and_then(read));
    }
}

fn read(array: &Array) -> Result<()> {
    fn some<T: Element>(array: &Array) -> Result<()> {
        let tensor = array.tensor::<T>()?;
        assert_eq!(tensor.shape(), array.shape());
        assert_eq!(tensor.to_vec().len(), tensor.len());
        Ok(())
    }
    match array.dtype() {
        DType::U8 => some::<u8>(array),
        DType::I8 => some::<i8>(array),
        DType::I16 => some::<i16>(array),
        DType::I32 => some::<i32>(array),
        DType::I64 => some::<i64>(array),
        DType::F32 => some::<f32>(array),
        DType::F64 => some::<f64>(array),
        _ => Ok(()),
    }
}

fn tokens<T: arrays::Token>(file: &TokenFile<T>) -> Result<()> {
    if let Ok(documents) = file.documents() {
        assert_eq!(documents.lengths().into_iter().sum::<u64>(), file.len());
    }
    let windows = file.windows(3)?.with_stride(2)?;
    assert!(windows.len() > 0);
    Ok(())
}
