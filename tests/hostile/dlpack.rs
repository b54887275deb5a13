//! DLPack on devices that fail: whatever fails, a deleter is called once, and nothing that may be in use is reused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pinfeed::device::Hostile;
use pinfeed::interop::dlpack::{DLDevice, Exported, Imported};
use pinfeed::tensor::DType;
use pinfeed::{Batch, Device, Tensor};

use crate::support::watched;

const WORDS: usize = 600;

struct Counted(Arc<AtomicUsize>, Vec<u32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A device on which the `call`th operation of this name fails.
fn failing(seed: u64, operation: &'static str, call: u64) -> Option<Device> {
    let mut options = Hostile::default();
    options.seed = seed;
    options.max_delay = Duration::from_millis(1);
    options.fail_operation = Some(operation);
    options.fail_call = Some(call);
    Device::hostile(options).ok()
}

#[test]
fn an_import_is_let_go_once_whatever_fails() {
    watched("an_import_is_let_go_once_whatever_fails", |seed| {
        for operation in ["copy", "record_event", "stream_wait_event", "alloc_device"] {
            for call in 0..4 {
                let Some(device) = failing(seed, operation, call) else {
                    continue;
                };
                let Ok(stream) = device.stream() else {
                    continue;
                };
                let deleted: Arc<AtomicUsize> = Arc::default();
                for round in 1..=3 {
                    let owner = Box::new(Counted(Arc::clone(&deleted), vec![round; WORDS]));
                    let data = owner.1.as_ptr().cast_mut().cast();
                    // SAFETY: as many numbers are there as long as the owner lives, whose drop frees them, and nobody else uses them.
                    let exported = unsafe {
                        let dtype = DType::U32.into();
                        Exported::from_raw_parts(data, DLDevice::CPU, dtype, &[WORDS], 0, owner)
                    };
                    let managed = exported.unwrap().into_versioned();
                    // SAFETY: it was just exported, and is used once.
                    let imported = unsafe { Imported::from_versioned(managed) }.unwrap();
                    // SAFETY: nobody writes the numbers.
                    let there = unsafe { imported.to_device::<u32>(&device, &stream) };
                    assert_eq!(deleted.load(Ordering::SeqCst), round as usize);
                    let Ok(there) = there else { continue };
                    let Ok(back) = there
                        .to_host(false)
                        .and_then(pinfeed::device::Download::wait)
                    else {
                        continue;
                    };
                    assert_eq!(back.as_slice(), [round; WORDS], "{operation} {call}");
                }
                assert_eq!(deleted.load(Ordering::SeqCst), 3, "{operation} {call}");
            }
        }
    });
}

#[test]
fn an_export_that_fails_gives_its_memory_back() {
    watched("an_export_that_fails_gives_its_memory_back", |seed| {
        for operation in ["record_event", "stream_wait_event"] {
            for call in 0..6 {
                let Some(device) = failing(seed, operation, call) else {
                    continue;
                };
                let Ok(stream) = device.stream() else {
                    continue;
                };
                for round in 0..3 {
                    let tensor = Tensor::from(vec![round; WORDS]);
                    let Ok(there) = tensor.to_device(&device, true) else {
                        continue;
                    };
                    if let Ok(exported) = Exported::device(there, &stream) {
                        drop(exported);
                        let _ = device.sweep(); // if it fails, the next one may not
                    }
                }
                let _ = device.sweep();
                let memory = device.memory();
                assert_eq!(memory.adrift_bytes, 0, "{operation} {call}");
                if memory.leaked == 0 {
                    assert_eq!(memory.device_held_bytes, 0, "{operation} {call}");
                }
            }
        }
    });
}
