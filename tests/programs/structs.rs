//! Samples that are structs, with a field of each kind: what the fields of their batches are, on the host and on a device.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use pinfeed::{Batch, DataLoader, Device, Host, Ragged, Sample, Tensor, from_fn};

/// Where the camera was: a struct within the struct.
#[derive(Debug, Clone, Sample)]
struct Pose {
    position: [f32; 3],
    moving: bool,
}

/// Which frames of a video these are: nothing that a tensor can hold.
#[derive(Debug, Clone, PartialEq)]
struct Clip {
    begin: Duration,
    frames: u32,
}

#[derive(Sample)]
struct Frame {
    image: Tensor<u8>,
    label: i64,
    weight: f32,
    pose: Pose,
    size: (u32, u32),
    boxes: Ragged<f32>,
    caption: String,
    path: PathBuf,
    camera: Host<Option<u8>>,
    #[pinfeed(host)]
    clip: Clip,
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let frames = from_fn(10, |index, _| Ok(frame(index)));
    let device = Device::cpu();
    let loader = DataLoader::builder(frames)
        .batch_size(4)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    let mut seen = 0;
    for batch in &loader {
        let batch = batch?;
        let n = batch.label.len();
        assert_eq!(batch.image.shape()[..], [n, 2, 2, 3]);
        assert_eq!(batch.weight.shape()[..], [n]);
        assert_eq!(batch.pose.position.shape()[..], [n, 3]);
        assert_eq!(batch.pose.moving.as_slice()[0], 1); // `bool`s are bytes: 0 or 1
        assert_eq!(batch.size.0.len(), n);
        for (row, index) in batch.label.as_slice().iter().enumerate() {
            assert_eq!(batch.boxes.row(row).len(), 4 * *index as usize);
            assert_eq!(batch.caption[row], format!("number {index}"));
            assert_eq!(batch.clip[row].frames, *index as u32);
        }
        assert!(batch.camera.iter().all(Option::is_none));

        // On the device are the tensors; the rest stays where it is.
        let batch: FrameDeviceBatch = batch.to_device(&device, true)?;
        let labels = batch.label.to_host(false)?.wait()?;
        assert_eq!(labels.len(), batch.path.len());
        assert_eq!(batch.boxes.len(), n);
        println!("{batch:?}");
        seen += n;
    }
    assert_eq!(seen, 10);
    Ok(())
}

fn frame(index: u64) -> Frame {
    Frame {
        image: Tensor::zeros(&[2, 2, 3]),
        label: index as i64,
        weight: 0.5,
        pose: Pose {
            position: [index as f32; 3],
            moving: index.is_multiple_of(2),
        },
        size: (640, 480),
        boxes: Ragged::from(vec![[0.0, 0.0, 1.0, 1.0]; index as usize]),
        caption: format!("number {index}"),
        path: PathBuf::from(format!("{index}.jpg")),
        camera: Host(None),
        clip: Clip {
            begin: Duration::from_secs(index),
            frames: index as u32,
        },
    }
}
