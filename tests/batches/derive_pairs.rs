//! Derived structs of two fields, for every pair of kinds of samples: some have batches of one type, and must not get in
//! each other's way. What is tested is that they compile.

#![cfg(feature = "derive")]
#![allow(dead_code)] // most are never made

use std::fmt::Debug;

use pinfeed::tensor::Element;
use pinfeed::{Batch, DataLoader, Device, Host, Ragged, Sample, Tensor, from_fn};

/// A batch that can be sent, and shown on either side.
fn is_shown<B: Batch<OnDevice: Debug> + Debug>() {}

/// Each kind beside itself and each that comes after it, as named fields and as a tuple.
macro_rules! pairs {
    () => {};
    ($name:ident: $kind:ty; $($others:tt)*) => {
        mod $name {
            use super::*;

            pairs!(@beside $kind; $name: $kind; $($others)*);
        }
        pairs!($($others)*);
    };
    (@beside $kind:ty; $($name:ident: $other:ty;)*) => {$(
        mod $name {
            use super::*;

            #[derive(Sample)]
            struct Named {
                first: $kind,
                second: $other,
            }

            #[derive(Sample)]
            struct Tuple($other, $kind);

            const _: fn() = is_shown::<NamedBatch>;
            const _: fn() = is_shown::<TupleBatch>;
        }
    )*};
}

pairs! {
    scalar: f32;
    array: [f32; 4];
    array_of_one: [f32; 1];
    vec: Vec<f32>;
    tensor: Tensor<f32>;
    ragged: Ragged<f32>;
    byte: u8;
    truth: bool;
    bytes: Tensor<u8>;
    string: String;
    text: &'static str;
    path: std::path::PathBuf;
    host: Host<String>;
    host_number: Host<f32>;
    count: u64;
    matrix: [[f32; 2]; 2];
    pair: (f32, bool);
    other_pair: (Vec<f32>, u8);
}

#[cfg(feature = "image")]
mod pictures {
    use pinfeed::image::{LazyImage, LazyMask};

    use super::*;

    #[derive(Sample)]
    struct Named {
        picture: LazyImage,
        mask: LazyMask,
        again: LazyImage,
        bytes: Tensor<u8>,
        flag: bool,
    }

    #[derive(Sample)]
    struct Tuple(LazyMask, LazyImage, u8, Vec<u8>);

    const _: fn() = is_shown::<NamedBatch>;
    const _: fn() = is_shown::<TupleBatch>;
}

/// Its fields' batches are of one type whatever `T` is, or for some.
#[derive(Sample)]
struct Generic<T: Element, A: Sample, B> {
    vec: Vec<T>,
    tensor: Tensor<T>,
    array: [T; 2],
    a: A,
    b: B,
    number: f32,
}

#[test]
fn fields_of_one_type_are_shown_each_by_its_name() {
    let samples = from_fn(2, |_, _| {
        Ok(Generic {
            vec: vec![1.0f32],
            tensor: Tensor::from(vec![1.0]),
            array: [1.0; 2],
            a: 1.0f32,
            b: vec![1.0f32],
            number: 1.0,
        })
    });
    let loader = DataLoader::builder(samples).batch_size(2).build().unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let shown = format!("{batch:?}");
    assert!(shown.starts_with("GenericBatch { vec: Tensor {"), "{shown}");
    assert!(shown.contains(" array: Tensor {"), "{shown}");
    let batch = batch.to_device(&Device::cpu(), true).unwrap();
    let shown = format!("{batch:?}");
    assert!(
        shown.starts_with("GenericDeviceBatch { vec: DeviceTensor"),
        "{shown}"
    );
}
