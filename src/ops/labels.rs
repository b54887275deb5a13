//! Labels on the device: each becomes a row with a number for each class.

use super::mixing::MixupDraw;
use crate::device::DeviceTensor;
use crate::driver::{Labelling, Weights};
use crate::error::{Error, Result};
use crate::tensor::Float;

impl DeviceTensor<i64> {
    /// Turns labels into targets. Labels of shape `[n]`, from 0 to `classes - 1`, become probabilities of shape `[n,
    /// classes]`, smoothed, and mixed like the pictures of the same batch: pass the same `mix` to
    /// [`normalize_mixed`](DeviceTensor::normalize_mixed). With [`MixupDraw::none`] and no smoothing, each row has a single
    /// 1.
    ///
    /// Row `i` has `lambda` at label `i` and `1 - lambda` at label `i - 1` (the first row mixes with the last), or their
    /// sum if the labels are equal, as in torchvision's `MixUp` and `CutMix`. Each of these numbers `x` then becomes `x *
    /// (1 - label_smoothing) + label_smoothing / classes`, which is what PyTorch's `CrossEntropyLoss(label_smoothing=..)`
    /// does, so leave it at 0 there. The arithmetic is `f32`, rounded to the type at the end, with the same numbers on
    /// all devices.
    ///
    /// A label that is not a class (below 0, or `classes` and more) cannot be an error, because the host does not see it.
    /// All numbers of its row, and of the row that it is mixed into, are NaN, and so is the loss.
    ///
    /// The labels remain available, for example to count correct answers.
    ///
    /// # Synchronization
    ///
    /// As [`normalize`](DeviceTensor::normalize): it returns at once, and an event guards the result.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if the tensor has another shape, there is no class, or `label_smoothing` is not from 0 to 1;
    /// [`Error::DeviceBudget`] if live device tensors leave no room for the result, [`Error::WrongThread`] if a write
    /// loan on another thread's default stream was forgotten, [`Error::ComputeCapability`] on a CUDA device below 7.0
    /// (Pascal and older), [`Error::Device`] if the device failed.
    pub fn soft_labels<F: Float>(
        &self,
        classes: usize,
        mix: &MixupDraw,
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
        // SAFETY: the kernel reads that many labels, and writes as many numbers of `F`'s size as the shape has.
        unsafe { self.launch(&[rows, classes], kernel) }
    }
}

/// The few distinct numbers in the rows. They are computed here, so they are the same on all devices.
fn weights<F: Float>(classes: usize, mix: &MixupDraw, label_smoothing: f64) -> Weights {
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
