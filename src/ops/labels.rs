//! Labels on the device: of each, a number for each class.

use super::mixing::Mix;
use crate::device::DeviceTensor;
use crate::driver::{Labelling, Weights};
use crate::error::{Error, Result};
use crate::tensor::Float;

impl DeviceTensor<i64> {
    /// Makes targets of labels: of shape `[n]`, from 0 to `classes - 1`, they become probabilities of shape `[n, classes]`, mixed
    /// as the pictures are that [`normalize_mixed`](DeviceTensor::normalize_mixed) was given the same `mix` for, and smoothed. With
    /// [`Mix::none`] and no smoothing, that is one 1 in each row.
    ///
    /// Row `i` has `lambda` at label `i` and `1 - lambda` at label `i - 1` (the last one, before the first), and their sum if they
    /// are the same: as torchvision's `MixUp` and `CutMix` have it. Each of these numbers `x` then becomes `x * (1 - label_smoothing)
    /// + label_smoothing / classes`: what PyTorch's `CrossEntropyLoss(label_smoothing=..)` does, so leave it at 0 there. It is
    /// `f32` arithmetic, rounded to the type at the end, with the same numbers on all devices.
    ///
    /// A label that is no class (below 0, or `classes` and more) cannot be an error: the host does not see it. Each number of its
    /// row is NaN, and of the row that it is mixed into, and so is the loss.
    ///
    /// The labels stay, for counting what was right.
    ///
    /// # Synchronization
    ///
    /// As [`normalize`](DeviceTensor::normalize): it returns at once, and the result is guarded by an event.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if the shape is another one, there is no class, or `label_smoothing` is not from 0 to 1;
    /// [`Error::DeviceBudget`] if live device tensors leave no room for the result, [`Error::WrongThread`] if a write loan on
    /// another thread's default stream was forgotten, [`Error::ComputeCapability`] on a CUDA device below 7.0 (Pascal and older),
    /// [`Error::Device`] if the device failed.
    pub fn soft_labels<F: Float>(
        &self,
        classes: usize,
        mix: &Mix,
        label_smoothing: f64,
    ) -> Result<DeviceTensor<F>> {
        let refuse = |reason: String| Err(Error::option("soft_labels", reason));
        let [rows] = self.shape()[..] else {
            return refuse(format!(
                "takes labels of shape [n], and this tensor has {}",
                self.shape()
            ));
        };
        if classes == 0 {
            return refuse("without classes there are no labels".to_owned());
        }
        if !(0.0..=1.0).contains(&label_smoothing) {
            return refuse(format!(
                "a label smoothing of {label_smoothing} is not from 0 to 1"
            ));
        }
        let weights = weights::<F>(classes, mix, label_smoothing);
        let kernel = |from, to| Labelling {
            from,
            to,
            rows: rows as u64,
            classes: classes as u64,
            element_bytes: size_of::<F>(),
            is_mixed: !mix.is_none(),
            weights,
        };
        // SAFETY: the kernel reads as many labels, and writes as many numbers as the shape has, of `F`'s size.
        unsafe { self.launch(&[rows, classes], kernel) }
    }
}

/// The few numbers that rows are made of. They are computed here, so that all devices have the same.
fn weights<F: Float>(classes: usize, mix: &Mix, label_smoothing: f64) -> Weights {
    let (own, other) = mix.weights();
    let (kept, spread) = (
        (1.0 - label_smoothing) as f32,
        (label_smoothing / classes as f64) as f32,
    );
    let number = |weight: f32| F::from_f32(weight * kept + spread).bits();
    Weights {
        none: number(0.0),
        own: number(own),
        other: number(other),
        both: number(own + other),
        invalid: F::from_f32(f32::NAN).bits(),
    }
}
