//! Something that is learnt at once: which of three colours a picture of noise has most of.

use pinfeed::Tensor;

/// Pictures, and their classes.
pub(crate) type Batch = (Tensor<u8>, Tensor<i64>);

/// Makes pictures of 32 by 32 pixels, as PPM files: noise, with more red (class 0), green or blue in it.
pub(crate) struct Noise(u32);

impl Noise {
    pub(crate) fn new() -> Noise {
        Noise(1)
    }

    pub(crate) fn picture(&mut self, class: usize) -> Vec<u8> {
        let mut file = b"P6 32 32 255\n".to_vec();
        for _ in 0..32 * 32 {
            file.extend((0..3).map(|colour| self.next() + if colour == class { 90 } else { 0 }));
        }
        file
    }

    /// A number below 128.
    fn next(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 25) as u8
    }
}

/// The mean colour of each class.
#[derive(Default)]
pub(crate) struct Model {
    sums: [[f64; 3]; 3],
    counts: [f64; 3],
}

impl Model {
    pub(crate) fn learn(&mut self, (pictures, classes): &Batch) {
        for (colour, class) in colours(pictures).zip(classes.as_slice()) {
            let class = *class as usize;
            self.counts[class] += 1.0;
            (0..3).for_each(|of| self.sums[class][of] += colour[of]);
        }
    }

    /// How many of a batch have the class whose mean is nearest.
    pub(crate) fn right(&self, (pictures, classes): &Batch) -> usize {
        let distance = |colour: &[f64; 3], class: usize| -> f64 {
            let mean = self.sums[class].map(|sum| sum / self.counts[class]);
            (0..3).map(|of| (colour[of] - mean[of]).powi(2)).sum()
        };
        let nearest = |colour: &[f64; 3]| {
            (0..3).min_by(|a, b| distance(colour, *a).total_cmp(&distance(colour, *b)))
        };
        let pairs = colours(pictures).zip(classes.as_slice());
        pairs
            .filter(|(colour, class)| nearest(colour) == Some(**class as usize))
            .count()
    }
}

/// The mean colour of each picture of a batch `[n, height, width, 3]`.
fn colours(pictures: &Tensor<u8>) -> impl Iterator<Item = [f64; 3]> {
    let values: usize = pictures.shape()[1..].iter().product();
    pictures
        .as_slice()
        .chunks_exact(values)
        .map(move |picture| {
            let mean = |colour: usize| {
                let of_pixels = picture.iter().skip(colour).step_by(3);
                of_pixels.map(|of| f64::from(*of)).sum::<f64>() / (values / 3) as f64
            };
            [mean(0), mean(1), mean(2)]
        })
}
