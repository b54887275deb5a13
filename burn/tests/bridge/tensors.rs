//! Tensors: no copy where none is needed, a copy where another holder would see a write, and errors that say what to do.

use burn::tensor::{AllocationProperty, Bytes, DType, Device, TensorData, bf16, f16};
use burn_std::{AccessError, Writer};
use pinfeed::{DataLoader, Tensor, from_fn};
use pinfeed_burn::{BurnElement, Error, IntoBurn, from_data};

/// A batch in page-locked memory.
fn batch<T: BurnElement + pinfeed::Sample<Batch = Tensor<T>>>(
    rows: usize,
    element: impl Fn(u64) -> T + Send + Sync + 'static,
) -> Tensor<T> {
    let samples = from_fn(rows as u64, move |index, _| Ok(element(index)));
    let device = pinfeed::Device::cpu();
    let loader = DataLoader::builder(samples)
        .batch_size(rows)
        .pin_memory(&device)
        .strict_pinning(true)
        .build()
        .unwrap();
    loader.epoch(0).next().unwrap().unwrap()
}

fn bytes(data: TensorData) -> Bytes {
    data.into_parts().0
}

#[test]
fn a_tensor_is_the_batchs_memory() {
    for device in [Device::flex(), crate::net::ndarray()] {
        let batch = batch(6, |index| index as f32);
        let address = batch.as_slice().as_ptr() as usize;
        let data = batch.into_burn::<1>(&device).unwrap().into_data();
        assert_eq!(
            data.try_to_vec::<f32>().unwrap(),
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        );
        if device == Device::flex() {
            assert_eq!(data.bytes().as_ptr() as usize, address);
        } // (ndarray makes a copy to give the data back.)
    }
}

#[test]
fn page_locked_memory_is_said_to_be_so() {
    let pinned = batch(4, |index| index as i64);
    assert!(pinned.is_pinned());
    assert_eq!(
        pinned.into_data().bytes().property(),
        AllocationProperty::Pinned
    );
    let pageable = Tensor::from(vec![1.0f32]);
    assert_eq!(
        pageable.into_data().bytes().property(),
        AllocationProperty::Other
    );
}

#[test]
fn every_element_type_goes_there_and_back() {
    fn there_and_back<T: BurnElement + PartialEq>(values: Vec<T>) {
        let tensor = Tensor::from_vec(values.clone(), &[2, 1]).unwrap();
        let data = tensor.into_data();
        assert_eq!((data.dtype(), data.shape().to_vec()), (T::BURN, vec![2, 1]));
        let tensor = from_data::<T>(data).unwrap();
        assert_eq!(
            (&tensor.shape()[..], tensor.as_slice()),
            (&[2, 1][..], &values[..])
        );
        let device = Device::flex();
        let tensor = Tensor::from_vec(values.clone(), &[2, 1]).unwrap();
        let data = tensor.into_burn::<2>(&device).unwrap().into_data();
        assert_eq!(from_data::<T>(data).unwrap().as_slice(), &values[..]);
    }
    there_and_back(vec![0u8, 255]);
    there_and_back(vec![-128i8, 127]);
    there_and_back(vec![i16::MIN, i16::MAX]);
    there_and_back(vec![0, u16::MAX]);
    there_and_back(vec![i32::MIN, i32::MAX]);
    there_and_back(vec![0, u32::MAX]);
    there_and_back(vec![i64::MIN, i64::MAX]);
    there_and_back(vec![f16::from_f32(0.5), f16::from_f32(-2.0)]);
    there_and_back(vec![bf16::from_f32(0.5), bf16::from_f32(-2.0)]);
    there_and_back(vec![0.1f32, f32::MAX]);
    there_and_back(vec![0.1f64, f64::MIN_POSITIVE]);
}

/// Burn's default types are others (`I64` here): without a word to it, it would convert on the host.
#[test]
fn the_element_type_stays_as_it_is() {
    let device = Device::flex();
    let pixels = batch(3, |index| index as u8);
    let pixels = pixels.into_burn::<1>(&device).unwrap();
    assert_eq!(pixels.dtype(), DType::U8);
    let scaled = (pixels.float() / 2.0).into_data();
    assert_eq!(scaled.try_to_vec::<f32>().unwrap(), [0.0, 0.5, 1.0]);
}

#[test]
fn burn_may_write_where_nobody_else_reads() {
    let batch = batch(4, |index| index as f32);
    let address = batch.as_slice().as_ptr();
    let mut bytes = bytes(batch.into_data());
    let written = bytes.write(Writer::new().no_copy()).unwrap(); // (this would refuse a copy)
    written[..4].copy_from_slice(&7.0f32.to_ne_bytes());
    assert_eq!(
        (bytes.as_ptr().cast(), &bytes[..4]),
        (address, &7.0f32.to_ne_bytes()[..])
    );
}

#[test]
fn what_another_holder_reads_is_copied_before_it_is_written() {
    let batch = batch(4, |index| index as f32);
    let view = batch.view();
    let mut bytes = bytes(batch.into_data());
    let refused = bytes
        .write(Writer::new().no_copy())
        .map(|bytes| bytes.len());
    assert_eq!(refused, Err(AccessError::WouldCopy));
    bytes[..4].copy_from_slice(&7.0f32.to_ne_bytes());
    assert_eq!(&bytes[..4], &7.0f32.to_ne_bytes());
    assert_eq!(view.as_slice(), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(bytes.property(), AllocationProperty::Other); // it is not in the ring any more
}

#[test]
fn a_clone_shares_and_a_write_parts_them() {
    let batch = batch(4, |index| index as i64);
    let mut first = bytes(batch.into_data());
    let second = first.clone();
    assert_eq!(first.as_ptr(), second.as_ptr());
    first[0] = 9;
    assert_ne!(first.as_ptr(), second.as_ptr());
    assert_eq!((first[0], second[0]), (9, 0));
    let mut second = second; // now it is alone
    assert!(second.write(Writer::new().no_copy()).is_ok());
}

#[test]
fn memory_of_another_owner_is_never_written() {
    let owner: &'static [u8] = b"read only";
    let tensor = Tensor::<u8>::from_owner(owner, &[9]).unwrap();
    let mut bytes = bytes(tensor.into_data());
    assert_eq!(bytes.as_ptr(), owner.as_ptr());
    bytes[0] = b'R';
    assert_eq!((&bytes[..], owner), (&b"Read only"[..], &b"read only"[..]));
}

#[test]
fn bytes_can_be_split_and_made_a_vec() {
    let (left, right) = bytes(batch(4, |index| index as u8).into_data())
        .split(1, burn_std::SplitPolicy::Shared)
        .unwrap();
    assert_eq!((&left[..], &right[..]), (&[0][..], &[1, 2, 3][..]));
    let numbers = batch(4, |index| index as i32).into_data();
    assert_eq!(numbers.try_into_vec::<i32>().unwrap(), [0, 1, 2, 3]); // a copy: the memory is the ring's
}

#[test]
fn tensors_without_elements_and_scalars_are_tensors() {
    let device = Device::flex();
    let empty = Tensor::<f32>::zeros(&[0, 3]).into_burn::<2>(&device);
    assert_eq!(empty.unwrap().dims(), [0, 3]);
    let row = batch(3, |index| index as f32).row(2); // a view, whose address is not that of a field
    assert_eq!(row.shape().len(), 0);
    let row = row.reshape(&[1]).unwrap().into_burn::<1>(&device).unwrap();
    assert_eq!(row.into_data().try_to_vec::<f32>().unwrap(), [2.0]);
}

#[test]
fn errors_say_what_to_do() {
    let error = Tensor::<u8>::zeros(&[2, 3])
        .into_burn::<4>(&Device::flex())
        .unwrap_err();
    assert!(matches!(error, Error::Rank { wanted: 4, .. }));
    assert_eq!(
        error.to_string(),
        "a tensor of shape [2, 3] has 2 dimensions, and not 4: write `into_burn::<2>`, or `reshape` it before (a batch has a dimension more \
         than its samples)"
    );
    let error = Tensor::from(vec![f16::ONE])
        .into_burn::<1>(&crate::net::ndarray())
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Unsupported {
                dtype: DType::F16,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("convert on the host"), "{error}");
    let error = from_data::<f64>(TensorData::from([1i64])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "burn's data are I64, and not F64: convert them before, by `convert_dtype`"
    );
}

#[test]
fn booleans_are_bytes() {
    let mask = from_data::<u8>(TensorData::from([true, false])).unwrap();
    assert_eq!(mask.as_slice(), [1, 0]);
    let mask = mask.into_burn::<1>(&Device::flex()).unwrap().equal_elem(1);
    assert_eq!(
        mask.into_data().try_to_vec::<bool>().unwrap(),
        [true, false]
    );
}

/// The memory goes home when burn drops it, on whichever thread, and the ring makes no more of it.
#[test]
fn memory_comes_home_from_another_thread() {
    let device = pinfeed::Device::cpu();
    let samples = from_fn(4_000, |index, _| Ok([index as f32; 100]));
    let loader = DataLoader::builder(samples)
        .batch_size(100)
        .num_workers(2)
        .pin_memory(&device)
        .strict_pinning(true)
        .build()
        .unwrap();
    let (sender, receiver) = std::sync::mpsc::sync_channel(0); // one batch is held here, one there
    let reader = std::thread::Builder::new().name("reader".to_owned());
    let reader = reader.spawn(move || {
        let each = receiver
            .iter()
            .map(|data: TensorData| data.try_to_vec::<f32>().unwrap()[0]);
        each.collect::<Vec<_>>()
    });
    for batch in loader.epoch(0) {
        sender.send(batch.unwrap().into_data()).unwrap();
    }
    drop(sender);
    let first: Vec<_> = (0..40).map(|batch| (batch * 100) as f32).collect();
    assert_eq!(reader.unwrap().join().unwrap(), first);
}
