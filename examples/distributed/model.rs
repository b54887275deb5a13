//! A softmax regression on pixels, and its gradient on the CPU.
//!
//! Weights are `classes` rows of `inputs` numbers and a bias each. A gradient is summed over samples, and travels with two numbers more: the sum of
//! the losses, and the number of samples. So ranks whose last batches differ in size need no special case.

use pinfeed::{BoxError, Tensor};

#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) inputs: usize,
    pub(crate) classes: usize,
}

impl Shape {
    pub(crate) fn weights(self) -> usize {
        self.classes * (self.inputs + 1)
    }

    /// The length of a gradient, with the losses and the number of samples behind it.
    pub(crate) fn sums(self) -> usize {
        self.weights() + 2
    }

    /// The mean loss, and the number of samples.
    pub(crate) fn means(self, sums: &[f32]) -> (f32, f32) {
        let [loss, samples] = [sums[self.weights()], sums[self.weights() + 1]];
        (loss / samples.max(1.0), samples)
    }
}

/// The model on the CPU.
pub(crate) struct Cpu {
    shape: Shape,
    weights: Vec<f32>,
}

impl Cpu {
    pub(crate) fn new(shape: Shape, weights: Vec<f32>) -> Cpu {
        Cpu { shape, weights }
    }

    pub(crate) fn weights(&self) -> &[f32] {
        &self.weights
    }

    pub(crate) fn into_weights(self) -> Vec<f32> {
        self.weights
    }

    /// The sum of the gradients of a batch's samples.
    pub(crate) fn gradient(
        &self,
        pixels: &Tensor<u8>,
        classes: &Tensor<i64>,
    ) -> Result<Vec<f32>, BoxError> {
        let Shape { inputs, .. } = self.shape;
        let mut sums = vec![0.0; self.shape.sums()];
        let (gradient, behind) = sums.split_at_mut(self.shape.weights());
        for (picture, class) in pixels
            .as_slice()
            .chunks_exact(inputs)
            .zip(classes.as_slice())
        {
            let scores = self.probabilities(picture);
            let own = usize::try_from(*class)
                .ok()
                .and_then(|class| scores.get(class));
            let own = own.ok_or_else(|| no_class(*class, self.shape.classes))?;
            behind[0] -= own.max(f32::MIN_POSITIVE).ln();
            behind[1] += 1.0;
            let rows = gradient.chunks_exact_mut(inputs + 1);
            for ((row, score), of) in rows.zip(&scores).zip(0..) {
                let error = score - f32::from(u8::from(of == *class));
                let (bias, row) = row.split_last_mut().ok_or("a class has no weights")?;
                for (sum, pixel) in row.iter_mut().zip(picture) {
                    *sum += error * f32::from(*pixel) / 255.0;
                }
                *bias += error;
            }
        }
        Ok(sums)
    }

    /// Moves the weights against the mean gradient of all ranks.
    pub(crate) fn step(&mut self, sums: &[f32], rate: f32) {
        let (_, samples) = self.shape.means(sums);
        let rate = rate / (samples.max(1.0) * self.shape.inputs as f32).sqrt();
        for (weight, sum) in self.weights.iter_mut().zip(sums) {
            *weight -= rate * sum;
        }
    }

    /// How many pictures of a batch are recognised.
    pub(crate) fn right(&self, pixels: &Tensor<u8>, classes: &Tensor<i64>) -> usize {
        let pictures = pixels.as_slice().chunks_exact(self.shape.inputs);
        let is_right = |(picture, class): &(&[u8], &i64)| {
            let scores = self.probabilities(picture);
            let best =
                (0..scores.len()).max_by(|one, other| scores[*one].total_cmp(&scores[*other]));
            best.and_then(|best| i64::try_from(best).ok()) == Some(**class)
        };
        pictures.zip(classes.as_slice()).filter(is_right).count()
    }

    fn probabilities(&self, picture: &[u8]) -> Vec<f32> {
        let rows = self.weights.chunks_exact(self.shape.inputs + 1);
        let score = |row: &[f32]| {
            let products = row.iter().zip(picture);
            let sum: f32 = products
                .map(|(weight, pixel)| weight * f32::from(*pixel))
                .sum();
            sum / 255.0 + row[self.shape.inputs]
        };
        let mut scores: Vec<f32> = rows.map(score).collect();
        let most = scores.iter().copied().fold(f32::MIN, f32::max);
        scores
            .iter_mut()
            .for_each(|score| *score = (*score - most).exp());
        let sum: f32 = scores.iter().sum();
        scores.iter_mut().for_each(|score| *score /= sum);
        scores
    }
}

pub(crate) fn no_class(class: i64, classes: usize) -> String {
    format!("a sample has class {class}, and --classes is {classes}")
}

/// A number that tells weights apart: FNV-1a over their bits.
pub(crate) fn digest(weights: &[f32]) -> u64 {
    let bytes = weights.iter().flat_map(|weight| weight.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
