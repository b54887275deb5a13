//! Host memory out and in, as Miri can watch it. (Device memory: `tests/conformance/dlpack.rs`.)

#![allow(clippy::disallowed_methods, clippy::mem_forget)] // threads of tests need no names, and one of its tensors has no deleter

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use super::*;
use crate::error::{Error, Result};
use crate::tensor::{DType, Element, Tensor};

/// An owner of bytes that counts how often it is dropped, and may panic.
struct Owner {
    bytes: Vec<u64>,
    dropped: Arc<AtomicUsize>,
    panics: bool,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        let length = self.bytes.len() * 8;
        // SAFETY: numbers are bytes, too.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), length) }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "this owner panics");
    }
}

fn owned(dropped: &Arc<AtomicUsize>, panics: bool) -> Tensor<i64> {
    let owner = Owner {
        bytes: (0..6).collect(),
        dropped: Arc::clone(dropped),
        panics,
    };
    Tensor::from_owner(owner, &[2, 3]).unwrap()
}

fn import(exported: Exported) -> Imported {
    // SAFETY: it was just exported, and is used once.
    unsafe { Imported::from_versioned(exported.into_versioned()) }.unwrap()
}

/// There and back, by both forms.
fn travels<T: Element>(values: Vec<T>, shape: &[usize]) {
    for versioned in [true, false] {
        let tensor = Tensor::from_vec(values.clone(), shape).unwrap();
        let address = tensor.as_slice().as_ptr();
        let exported = Exported::host(tensor).unwrap();
        let imported = match versioned {
            true => import(exported),
            false => {
                // SAFETY: it was just exported, and is used once.
                unsafe { Imported::from_unversioned(exported.into_unversioned().unwrap()) }.unwrap()
            }
        };
        assert_eq!(imported.dtype(), T::DTYPE.into());
        assert_eq!(
            (imported.device(), imported.shape()),
            (DLDevice::CPU, shape)
        );
        let mut back = imported.into_host::<T>().unwrap();
        assert_eq!((back.as_slice(), &back.shape()[..]), (&values[..], shape));
        assert!(back.is_empty() || back.as_slice().as_ptr() == address);
        assert!(back.is_empty() || back.as_mut_slice().is_none()); // never written here
    }
}

#[test]
fn tensors_travel_where_they_lie() {
    travels(vec![1u8, 2, 3, 4, 5, 6], &[1, 2, 3]);
    travels(vec![-1i8, 2], &[2]);
    travels(vec![-300i16; 4], &[2, 2]);
    travels(vec![65_535u16], &[]);
    travels(vec![-70_000i32], &[1, 1, 1]);
    travels(vec![u32::MAX, 0], &[2, 1]);
    travels(vec![i64::MIN, i64::MAX], &[2]);
    travels(vec![half::f16::from_f32(0.1); 3], &[3]);
    travels(vec![half::bf16::from_f32(0.1); 3], &[3]);
    travels(vec![0.1f32; 24], &[2, 3, 4]);
    travels(vec![0.1f64], &[]);
    travels(Vec::<f32>::new(), &[0]);
    travels(Vec::<u8>::new(), &[3, 0, 2]);
}

#[test]
fn the_structs_say_what_numpy_and_torch_say() {
    let theirs = Exported::host(Tensor::from_vec(vec![0.5f32; 24], &[2, 3, 4]).unwrap());
    let theirs = theirs.unwrap().into_versioned();
    // SAFETY: it was just exported, and its deleter is called once, at the end.
    unsafe {
        let managed = &*theirs;
        assert_eq!(managed.version, DLPackVersion { major: 1, minor: 0 });
        assert_eq!(managed.flags, 0);
        let tensor = &managed.dl_tensor;
        assert_eq!((tensor.ndim, tensor.byte_offset), (3, 0));
        assert_eq!(std::slice::from_raw_parts(tensor.shape, 3), [2, 3, 4]);
        assert_eq!(std::slice::from_raw_parts(tensor.strides, 3), [12, 4, 1]);
        let types = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes);
        assert_eq!(types, (2, 32, 1));
        assert_eq!(*tensor.data.cast::<f32>().add(23), 0.5);
        (managed.deleter.unwrap())(theirs);
    }
    let empty = Exported::host(Tensor::<i32>::zeros(&[0, 5])).unwrap();
    let theirs = empty.into_unversioned().unwrap();
    // SAFETY: as above.
    unsafe {
        let tensor = &(*theirs).dl_tensor;
        assert!(tensor.data.is_null());
        assert_eq!(std::slice::from_raw_parts(tensor.strides, 2), [5, 1]);
        ((*theirs).deleter.unwrap())(theirs);
    }
}

/// What a deleter does with a null pointer is not said. Ours does nothing.
#[test]
fn deleters_take_null() {
    let theirs = Exported::host(Tensor::from(vec![1u8]))
        .unwrap()
        .into_versioned();
    // SAFETY: as above.
    unsafe {
        let deleter = (*theirs).deleter.unwrap();
        deleter(std::ptr::null_mut());
        deleter(theirs);
    }
}

#[test]
fn shared_memory_is_read_only() {
    let tensor = Tensor::from(vec![1i32, 2, 3]);
    let exported = Exported::host(tensor.view()).unwrap();
    assert!(exported.is_read_only());
    let refused = exported.into_unversioned().unwrap_err().to_string();
    assert!(
        refused.contains("must not be written") && refused.contains("host_copy"),
        "{refused}"
    );
    assert_eq!(tensor.as_slice(), [1, 2, 3]);
    let copy = Exported::host_copy(&tensor).unwrap();
    assert!(!copy.is_read_only());
    let theirs = copy.into_versioned();
    // SAFETY: it was just exported, and is used once.
    unsafe {
        assert_eq!((*theirs).flags, DLManagedTensorVersioned::IS_COPIED);
        theirs.read().dl_tensor.data.cast::<i32>().write(9);
        ((*theirs).deleter.unwrap())(theirs);
    }
    assert_eq!(tensor.as_slice(), [1, 2, 3]);

    let dropped = Arc::default();
    let exported = Exported::host(owned(&dropped, false)).unwrap();
    assert!(exported.is_read_only()); // the owner's
    assert!(import(exported).is_read_only());
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn an_owner_goes_once_whoever_lets_go() {
    let dropped: Arc<AtomicUsize> = Arc::default();
    let count = || dropped.load(Ordering::SeqCst);
    let exported = || Exported::host(owned(&dropped, false)).unwrap();

    drop(exported()); // never exported after all
    assert_eq!(count(), 1);
    drop(import(exported())); // never used
    assert_eq!(count(), 2);
    assert!(import(exported()).into_host::<f32>().is_err()); // refused
    assert_eq!(count(), 3);
    assert!(exported().seen_as(DLDataType::BOOL).is_err());
    assert_eq!(count(), 4);
    assert!(exported().into_unversioned().is_err());
    assert_eq!(count(), 5);

    let tensor = import(exported()).into_host::<i64>().unwrap();
    let row = tensor.row(1);
    drop(tensor);
    assert_eq!(count(), 5);
    let (to_there, there) = mpsc::channel::<Tensor<i64>>();
    let thread = thread::spawn(move || assert_eq!(there.recv().unwrap().as_slice(), [3, 4, 5]));
    to_there.send(row).unwrap(); // its deleter is called there
    thread.join().unwrap();
    assert_eq!(count(), 6);

    // Out again: what came in is another owner's.
    let again = Exported::host(import(exported()).into_host::<i64>().unwrap()).unwrap();
    assert!(again.is_read_only());
    let theirs = again.into_versioned();
    let address = theirs.addr();
    let theirs = theirs.expose_provenance();
    assert_eq!(address, theirs);
    thread::spawn(move || {
        let theirs: *mut DLManagedTensorVersioned = std::ptr::with_exposed_provenance_mut(theirs);
        // SAFETY: it was just exported, and is used once.
        unsafe { ((*theirs).deleter.unwrap())(theirs) };
    })
    .join()
    .unwrap();
    assert_eq!(count(), 7);
}

#[test]
fn an_owner_that_panics_stays_within_its_deleter() {
    let dropped: Arc<AtomicUsize> = Arc::default();
    let theirs = Exported::host(owned(&dropped, true))
        .unwrap()
        .into_versioned();
    // SAFETY: it was just exported, and is used once.
    unsafe { ((*theirs).deleter.unwrap())(theirs) };
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_lets_go_of_what_was_imported() {
    let dropped: Arc<AtomicUsize> = Arc::default();
    let imported = import(Exported::host(owned(&dropped, false)).unwrap());
    let panicked = thread::spawn(move || {
        let _tensor = imported.into_host::<i64>().unwrap();
        panic!("in the middle of it");
    });
    assert!(panicked.join().is_err());
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn truth_values_are_bytes() {
    let flags = Exported::host(Tensor::from(vec![1u8, 0])).unwrap();
    let imported = import(flags.seen_as(DLDataType::BOOL).unwrap());
    assert_eq!(imported.dtype(), DLDataType::BOOL);
    assert_eq!(imported.into_host::<u8>().unwrap().as_slice(), [1, 0]);
    let large = Exported::host(Tensor::from(vec![-1i64])).unwrap();
    let imported = import(large.seen_as(DLDataType::U64).unwrap());
    let refused = imported.into_host::<i64>().unwrap_err().to_string();
    assert!(
        refused.contains("elements of u64, and i64 was asked for"),
        "{refused}"
    );
}

/// A struct of another library's, whose deleter counts.
struct Made {
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    numbers: Vec<f32>,
    dtype: DLDataType,
    device: DLDevice,
    major: u32,
    byte_offset: u64,
    ndim: Option<i32>,
    has_data: bool,
    has_deleter: bool,
}

impl Default for Made {
    fn default() -> Made {
        Made {
            shape: vec![2, 3],
            strides: Some(vec![3, 1]),
            numbers: vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
            dtype: DType::F32.into(),
            device: DLDevice::CPU,
            major: 1,
            byte_offset: 0,
            ndim: None,
            has_data: true,
            has_deleter: true,
        }
    }
}

struct Context {
    made: Made,
    deleted: Arc<AtomicUsize>,
}

unsafe extern "C" fn count(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: `Made::import` made both.
    unsafe {
        let context = Box::from_raw((*managed).manager_ctx.cast::<Context>());
        context.deleted.fetch_add(1, Ordering::SeqCst);
        drop(Box::from_raw(managed));
    }
}

impl Made {
    fn import(self, deleted: &Arc<AtomicUsize>) -> Result<Imported> {
        let has_deleter = self.has_deleter;
        let context = Box::into_raw(Box::new(Context {
            made: self,
            deleted: Arc::clone(deleted),
        }));
        // SAFETY: nothing else has it.
        let made = unsafe { &mut (*context).made };
        let managed = Box::into_raw(Box::new(DLManagedTensorVersioned {
            version: DLPackVersion {
                major: made.major,
                minor: 7,
            },
            manager_ctx: context.cast(),
            deleter: has_deleter.then_some(count as unsafe extern "C" fn(_)),
            flags: 0,
            dl_tensor: DLTensor {
                data: match made.has_data {
                    true => made.numbers.as_mut_ptr().cast::<c_void>(),
                    false => std::ptr::null_mut(),
                },
                device: made.device,
                ndim: made.ndim.unwrap_or(made.shape.len() as i32),
                dtype: made.dtype,
                shape: made.shape.as_mut_ptr(),
                strides: match &mut made.strides {
                    Some(strides) => strides.as_mut_ptr(),
                    None => std::ptr::null_mut(),
                },
                byte_offset: made.byte_offset,
            },
        }));
        // SAFETY: it is made as an exporter makes it, and used once.
        let imported = unsafe { Imported::from_versioned(managed) };
        if !has_deleter {
            drop(imported?); // which asks the struct for its deleter
            // SAFETY: both were made above, and nothing has them any more.
            unsafe {
                drop(Box::from_raw(context));
                drop(Box::from_raw(managed));
            }
            return Err(Error::option("test", "no deleter"));
        }
        imported
    }
}

#[test]
fn what_a_header_may_say_is_taken() {
    let deleted = Arc::default();
    let values = |made: Made| {
        made.import(&deleted)
            .unwrap()
            .into_host::<f32>()
            .unwrap()
            .to_vec()
    };
    let dense = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    assert_eq!(values(Made::default()), dense);
    let strides = None; // as before DLPack 1.2
    assert_eq!(
        values(Made {
            strides,
            ..Made::default()
        }),
        dense
    );
    let byte_offset = 8;
    assert_eq!(
        values(Made {
            byte_offset,
            ..Made::default()
        }),
        [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    );
    // Along a dimension of length 1, there is no neighbour; without elements, there are none at all.
    let one = Made {
        shape: vec![1, 4, 1],
        strides: Some(vec![-7, 1, 99]),
        ..Made::default()
    };
    assert_eq!(values(one), [0.0, 1.0, 2.0, 3.0]);
    let none = Made {
        shape: vec![2, 0],
        strides: Some(vec![5, 5]),
        has_data: false,
        ..Made::default()
    };
    assert!(values(none).is_empty());
    let scalar = Made {
        shape: Vec::new(),
        strides: None,
        ..Made::default()
    };
    assert_eq!(values(scalar), [0.0]);
    assert_eq!(deleted.load(Ordering::SeqCst), 6);
    assert!(
        Made {
            has_deleter: false,
            ..Made::default()
        }
        .import(&deleted)
        .is_err()
    );
}

#[test]
fn what_cannot_be_taken_is_refused_with_the_reason() {
    let deleted: Arc<AtomicUsize> = Arc::default();
    let mut cases: Vec<(Made, &str)> = Vec::new();
    let mut case = |change: fn(&mut Made), reason| {
        let mut made = Made::default();
        change(&mut made);
        cases.push((made, reason));
    };
    case(
        |made| made.major = 2,
        "is of DLPack 2.7, and this library knows 1.x",
    );
    case(|made| made.major = 0, "is of DLPack 0.7");
    case(|made| made.ndim = Some(-1), "has -1 dimensions");
    case(|made| made.shape = vec![2, -3], "its shape is [2, -3]");
    case(
        |made| made.strides = Some(vec![1, 2]),
        "its strides are [1, 2]. Make it contiguous",
    );
    case(|made| made.strides = Some(vec![0, 1]), "not dense"); // broadcast
    case(|made| made.strides = Some(vec![-3, 1]), "not dense");
    case(
        |made| made.shape = vec![i64::MAX, 2],
        "larger than memory can be",
    );
    case(
        |made| made.shape = vec![i64::MAX / 2, 1],
        "larger than memory can be",
    );
    case(|made| made.dtype.lanes = 4, "its elements are f32 x 4");
    case(
        |made| {
            made.dtype = DLDataType {
                code: 0,
                bits: 4,
                lanes: 1,
            }
        },
        "its elements are i4",
    );
    case(
        |made| {
            made.dtype = DLDataType {
                code: 5,
                bits: 64,
                lanes: 1,
            }
        },
        "has elements of complex64",
    );
    case(
        |made| made.dtype = DType::I32.into(),
        "has elements of i32, and f32 was asked for",
    );
    case(|made| made.has_data = false, "its memory is at address 0");
    case(|made| made.byte_offset = u64::MAX, "where no memory is");
    case(
        |made| made.byte_offset = 2,
        "begins at an address 2 past a multiple of 4",
    );
    case(
        |made| made.device = DLDevice::cuda(1),
        "is in cuda:1, and no host memory",
    );
    case(
        |made| made.device.device_type = 13,
        "is in managed memory of cuda:0",
    );
    let all = cases.len();
    for (place, (made, reason)) in cases.into_iter().enumerate() {
        let refused = made.import(&deleted).and_then(Imported::into_host::<f32>);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(reason), "{reason:?}: {refused}");
        assert_eq!(deleted.load(Ordering::SeqCst), place + 1, "{reason}");
    }
    assert_eq!(deleted.load(Ordering::SeqCst), all);
    // SAFETY: null is refused.
    let null = unsafe { Imported::from_versioned(std::ptr::null_mut()) };
    assert!(null.unwrap_err().to_string().contains("it is null"));
    // SAFETY: null is refused.
    assert!(unsafe { Imported::from_unversioned(std::ptr::null_mut()) }.is_err());
}

/// It counts as page-locked here, and leaves as a copy only.
#[test]
fn page_locked_memory_of_others_stays_page_locked() {
    let deleted = Arc::default();
    let made = Made {
        device: DLDevice::CUDA_HOST,
        ..Made::default()
    };
    let tensor = made.import(&deleted).unwrap().into_host::<f32>().unwrap();
    assert!(tensor.is_pinned());
    let view = tensor.view();
    let refused = Exported::host(view).unwrap_err().to_string();
    assert!(
        refused.contains("page-locked") && refused.contains("host_copy"),
        "{refused}"
    );
    let copied = import(Exported::host_copy(&tensor).unwrap());
    assert_eq!(
        copied.into_host::<f32>().unwrap().as_slice(),
        tensor.as_slice()
    );
    drop(tensor);
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
}

#[test]
fn rows_of_imported_tensors_are_samples() {
    let deleted: Arc<AtomicUsize> = Arc::default();
    let tensor = Made::default().import(&deleted).unwrap().into_host::<f32>();
    let table = crate::TensorDataset::new((tensor.unwrap(),)).unwrap();
    let loader = crate::DataLoader::builder(table).batch_size(2);
    let loader = loader.num_workers(0).build().unwrap();
    let (batch,) = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.as_slice(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    drop(loader);
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
}
