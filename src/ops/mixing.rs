//! MixUp and CutMix: how the pictures of a batch are mixed with each other, and by how much.

use std::f64::consts::TAU;
use std::ops::Range;

use crate::driver::Mixture;
use crate::rng::SampleRng;

/// Mixes the pictures of a batch, and their labels: by MixUp (Zhang et al., 2018), by CutMix (Yun et al., 2019), or by
/// either of the two, chosen evenly for each batch, as timm's `Mixup` does. They are torchvision's `MixUp(alpha=..)`, `CutMix(alpha=..)`,
/// and `RandomChoice` of the two. A new one does nothing.
///
/// [`draw`](Mixup::draw) draws a [`MixupDraw`] for one batch, which
/// [`DeviceTensor::normalize_mixed`](crate::DeviceTensor::normalize_mixed) and
/// [`DeviceTensor::soft_labels`](crate::DeviceTensor::soft_labels) apply on the device.
///
/// # Examples
///
/// ```
/// use pinfeed::ops::Mixup;
/// use pinfeed::DataLoader;
///
/// let mixing = Mixup::new().with_mixup(0.2).with_cutmix(1.0).with_probability(0.9);
/// let loader = DataLoader::builder(vec![0u8; 64]).batch_size(16).seed(17).build()?;
/// for batch in loader.epoch(0).with_info() {
///     let (_images, info) = batch?;
///     let mix = mixing.draw(&mut info.rng(), 224, 224);
///     assert!((0.0..=1.0).contains(&mix.lambda()));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mixup {
    mixup: Option<f64>,
    cutmix: Option<f64>,
    probability: f64,
}

impl Mixup {
    /// Makes one that does nothing.
    pub fn new() -> Mixup {
        Mixup {
            mixup: None,
            cutmix: None,
            probability: 1.0,
        }
    }

    /// Adds MixUp: each picture is `lambda` of itself and `1 - lambda` of the one before, with `lambda` from
    /// Beta(`alpha`, `alpha`).
    ///
    /// # Panics
    ///
    /// If `alpha` is not positive and finite.
    pub fn with_mixup(self, alpha: f64) -> Mixup {
        Mixup {
            mixup: Some(positive("mixup", alpha)),
            ..self
        }
    }

    /// Adds CutMix: each picture gets a box of the one before, from the same place, around a random pixel. Apart from
    /// what lies beyond the border, the box covers `1 - lambda` of the picture, with `lambda` from Beta(`alpha`,
    /// `alpha`).
    ///
    /// # Panics
    ///
    /// If `alpha` is not positive and finite.
    pub fn with_cutmix(self, alpha: f64) -> Mixup {
        Mixup {
            cutmix: Some(positive("cutmix", alpha)),
            ..self
        }
    }

    /// The share of batches that are mixed. Default: all.
    ///
    /// # Panics
    ///
    /// If it is not from 0 to 1.
    pub fn with_probability(self, probability: f64) -> Mixup {
        assert!(
            (0.0..=1.0).contains(&probability),
            "Mixup::with_probability: {probability} is not a probability"
        );
        Mixup {
            probability,
            ..self
        }
    }

    /// Draws how a batch of pictures of this size is mixed. With [`BatchInfo::rng`](crate::loader::BatchInfo::rng), the result
    /// depends only on the seed, the epoch and the batch's position.
    ///
    /// # Panics
    ///
    /// If CutMix is drawn for pictures without pixels.
    pub fn draw(&self, rng: &mut SampleRng, height: usize, width: usize) -> MixupDraw {
        if !rng.bool(self.probability) {
            return MixupDraw::none();
        }
        let (mixup, cutmix) = match (self.mixup, self.cutmix) {
            (Some(_), Some(_)) if rng.bool(0.5) => (self.mixup, None),
            (Some(_), Some(_)) => (None, self.cutmix),
            one => one,
        };
        match (mixup, cutmix) {
            (Some(alpha), _) => MixupDraw::mixup(beta(rng, alpha)),
            (_, Some(alpha)) => draw_box(rng, alpha, height, width),
            (None, None) => MixupDraw::none(),
        }
    }
}

impl Default for Mixup {
    fn default() -> Mixup {
        Mixup::new()
    }
}

fn positive(what: &str, alpha: f64) -> f64 {
    assert!(
        alpha.is_finite() && alpha > 0.0,
        "Mixup::with_{what}: an alpha of {alpha} is not positive and finite"
    );
    alpha
}

/// As torchvision draws and rounds it.
fn draw_box(rng: &mut SampleRng, alpha: f64, height: usize, width: usize) -> MixupDraw {
    let half = 0.5 * (1.0 - beta(rng, alpha)).sqrt();
    let mut side = |length: usize| {
        let centre = rng.below(length as u64) as usize;
        let half = (half * length as f64) as usize;
        centre.saturating_sub(half)..(centre + half).min(length)
    };
    let columns = side(width);
    MixupDraw::cutmix([height, width], side(height), columns)
}

/// Draws from Beta(`alpha`, `alpha`).
///
/// It is (1 + x) / 2 where x = t / sqrt(2 alpha + t²), for t of Student's distribution with 2 alpha degrees of freedom.
/// Bailey, "Polar generation of random variates with the t-distribution" (1994), draws that as sqrt(2 alpha (u^(-1/alpha)
/// - 1)) cos(2 pi v); Devroye, "Random variate generation in one line of code" (1996), combines the two.
fn beta(rng: &mut SampleRng, alpha: f64) -> f64 {
    let radius = (-rng.f64().ln() / alpha).exp_m1();
    let angle = TAU * rng.f64();
    // For a small alpha, the radius may be infinite: then x is 1 or -1. (The cosine of a floating point number is never
    // 0.)
    let squared = radius * angle.cos().powi(2);
    let x = (1.0 / (1.0 + 1.0 / squared)).sqrt().copysign(angle.cos());
    (1.0 + x) / 2.0
}

/// How one batch is mixed: each picture, and each label, with the one before it in the batch (the first one with the
/// last). A batch of one is mixed with itself.
///
/// # Examples
///
/// ```
/// use pinfeed::ops::MixupDraw;
///
/// assert_eq!(MixupDraw::mixup(0.7).lambda(), 0.7);
/// // A quarter of each 32 x 32 picture comes from the one before.
/// assert_eq!(MixupDraw::cutmix([32, 32], 0..16, 16..32).lambda(), 0.75);
/// assert!(MixupDraw::none().is_none()); // for validation
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct MixupDraw(MixKind);

#[derive(Debug, Clone, PartialEq)]
enum MixKind {
    None,
    MixUp {
        lambda: f64,
    },
    CutMix {
        size: [usize; 2],
        rows: Range<usize>,
        columns: Range<usize>,
    },
}

impl MixupDraw {
    /// Mixes nothing.
    pub fn none() -> MixupDraw {
        MixupDraw(MixKind::None)
    }

    /// Makes each picture `lambda` of itself and `1 - lambda` of the one before.
    ///
    /// # Panics
    ///
    /// If `lambda` is not from 0 to 1.
    pub fn mixup(lambda: f64) -> MixupDraw {
        assert!(
            (0.0..=1.0).contains(&lambda),
            "MixupDraw::mixup: a lambda of {lambda} is not from 0 to 1"
        );
        MixupDraw(MixKind::MixUp { lambda })
    }

    /// Gives each picture, of this height and width, a box of the one before: these rows and columns.
    ///
    /// # Panics
    ///
    /// If the picture has no pixels, or the box does not lie within it.
    pub fn cutmix(size: [usize; 2], rows: Range<usize>, columns: Range<usize>) -> MixupDraw {
        let lies_in =
            |range: &Range<usize>, length| range.start <= range.end && range.end <= length;
        assert!(
            !size.contains(&0) && lies_in(&rows, size[0]) && lies_in(&columns, size[1]),
            "MixupDraw::cutmix: rows {rows:?} and columns {columns:?} of a picture of {size:?}"
        );
        MixupDraw(MixKind::CutMix {
            size,
            rows,
            columns,
        })
    }

    /// Whether nothing is mixed.
    pub fn is_none(&self) -> bool {
        self.0 == MixKind::None
    }

    /// The share of each picture, and of each label, that is its own: 1 if nothing is mixed; for CutMix, what the box
    /// leaves.
    pub fn lambda(&self) -> f64 {
        match &self.0 {
            MixKind::None => 1.0,
            MixKind::MixUp { lambda } => *lambda,
            MixKind::CutMix {
                size: [height, width],
                rows,
                columns,
            } => {
                let cut = rows.len() as f64 * columns.len() as f64;
                1.0 - cut / (*height as f64 * *width as f64)
            }
        }
    }

    /// The rows and the columns of CutMix's box.
    pub fn cut(&self) -> Option<(Range<usize>, Range<usize>)> {
        match &self.0 {
            MixKind::CutMix { rows, columns, .. } => Some((rows.clone(), columns.clone())),
            _ => None,
        }
    }

    /// The weights of a label and of the one before.
    pub(super) fn weights(&self) -> (f32, f32) {
        let lambda = self.lambda();
        (lambda as f32, (1.0 - lambda) as f32)
    }

    /// What the device does with pictures of this size. Refuses pictures of a size that the box was not drawn for.
    pub(super) fn mixture(&self, height: usize, width: usize) -> Result<Option<Mixture>, String> {
        let (rows, columns, (own, other)) = match &self.0 {
            MixKind::None => return Ok(None),
            MixKind::MixUp { .. } => (0..height, 0..width, self.weights()),
            MixKind::CutMix {
                size,
                rows,
                columns,
            } if *size == [height, width] => (rows.clone(), columns.clone(), (0.0, 1.0)),
            MixKind::CutMix { size, .. } => {
                return Err(format!(
                    "the box was drawn for pictures of {size:?}, and these are of {:?}",
                    [height, width]
                ));
            }
        };
        Ok(Some(Mixture {
            width: width as u64,
            left: columns.start as u64,
            top: rows.start as u64,
            right: columns.end as u64,
            bottom: rows.end as u64,
            own,
            other,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RngKey;

    fn draws(alpha: f64) -> Vec<f64> {
        let mut rng = SampleRng::for_sample(RngKey {
            seed: 11,
            epoch: 0,
            position: 0,
        });
        (0..40_000).map(|_| beta(&mut rng, alpha)).collect()
    }

    /// Bounds of five standard deviations and more.
    #[test]
    fn lambdas_have_the_moments_of_their_distribution() {
        for alpha in [0.05, 0.2, 0.5, 1.0, 2.0, 8.0] {
            let draws = draws(alpha);
            let moment = |power| {
                let powers = draws.iter().map(|x| (x - 0.5f64).powi(power));
                powers.sum::<f64>() / draws.len() as f64
            };
            let variance = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            let fourth = 3.0 / (16.0 * (2.0 * alpha + 1.0) * (2.0 * alpha + 3.0));
            assert!(draws.iter().all(|x| (0.0..=1.0).contains(x)));
            assert!(moment(1).abs() < 0.0125, "mean of {alpha}: {}", moment(1));
            assert!(
                (moment(2) / variance - 1.0).abs() < 0.04,
                "variance of {alpha}: {}",
                moment(2)
            );
            assert!(
                moment(3).abs() < 0.0125 * variance.sqrt(),
                "third moment of {alpha}: {}",
                moment(3)
            );
            assert!(
                (moment(4) / fourth - 1.0).abs() < 0.1,
                "fourth moment of {alpha}: {}",
                moment(4)
            );
        }
    }

    /// Where the distribution is simple: of 40,000, the largest distance is below 0.0098 in 999 of 1,000 cases.
    #[test]
    fn lambdas_have_their_distribution() {
        let arcsine = |x: f64| 2.0 / std::f64::consts::PI * x.sqrt().asin();
        let parabola = |x: f64| 3.0 * x.powi(2) - 2.0 * x.powi(3);
        let cases: [(f64, &dyn Fn(f64) -> f64); 3] =
            [(0.5, &arcsine), (1.0, &|x| x), (2.0, &parabola)];
        for (alpha, expected) in cases {
            let mut draws = draws(alpha);
            draws.sort_unstable_by(f64::total_cmp);
            let count = draws.len() as f64;
            let distances = (0..)
                .zip(&draws)
                .map(|(below, x)| (f64::from(below) / count - expected(*x)).abs());
            let distance = distances.fold(0.0, f64::max);
            assert!(distance < 0.0098, "{alpha}: {distance}");
        }
    }

    /// The labels lose the share of the area that is cut.
    #[test]
    fn a_box_covers_what_lambda_leaves() {
        let mut seen = [false; 3];
        for batch in 0..2_000 {
            let mut rng = SampleRng::for_batch(RngKey {
                seed: 1,
                epoch: 0,
                position: batch,
            });
            let mix = Mixup::new().with_cutmix(1.0).draw(&mut rng, 24, 31);
            let (rows, columns) = mix.cut().unwrap();
            assert!(rows.end <= 24 && columns.end <= 31);
            let left = 1.0 - (rows.len() * columns.len()) as f64 / (24.0 * 31.0);
            assert_eq!(mix.lambda(), left);
            seen[0] |= rows.start == 0 && !rows.is_empty();
            seen[1] |= columns.end == 31 && !columns.is_empty();
            seen[2] |= rows.start > 0 && rows.end < 24 && columns.start > 0 && columns.end < 31;
        }
        assert_eq!(seen, [true; 3], "boxes at borders and inside");
    }

    /// A box that no border cuts is `1 - lambda` of the picture, for the lambda that was drawn.
    #[test]
    fn boxes_are_as_large_as_was_drawn() {
        let (mut areas, mut count) = (0.0, 0);
        for batch in 0..4_000 {
            let mut rng = SampleRng::for_batch(RngKey {
                seed: 2,
                epoch: 0,
                position: batch,
            });
            let lambda = beta(&mut rng.clone(), 1.0);
            let mix = draw_box(&mut rng, 1.0, 1_000, 2_000);
            let (rows, columns) = mix.cut().unwrap();
            if rows.start > 0 && rows.end < 1_000 && columns.start > 0 && columns.end < 2_000 {
                assert!((mix.lambda() - lambda).abs() < 0.004, "{mix:?}, {lambda}");
                count += 1;
            }
            areas += 1.0 - mix.lambda();
        }
        assert!(count > 200);
        // Of a side of length s (of 1), s - s²/4 lies in the picture in the mean over the centres; and s² is even over 0 to 1.
        let mean = areas / 4_000.0;
        assert!((mean - (0.5 - 0.2 + 1.0 / 48.0)).abs() < 0.02, "{mean}");
    }

    #[test]
    fn one_of_the_two_is_drawn_as_often_as_asked() {
        let mixing = Mixup::new()
            .with_mixup(0.4)
            .with_cutmix(1.0)
            .with_probability(0.8);
        let draw = |batch| {
            mixing.draw(
                &mut SampleRng::for_batch(RngKey {
                    seed: 3,
                    epoch: 1,
                    position: batch,
                }),
                16,
                16,
            )
        };
        let (mut none, mut cut) = (0, 0);
        for batch in 0..5_000 {
            let mix = draw(batch);
            assert_eq!(mix, draw(batch));
            none += usize::from(mix.is_none());
            cut += usize::from(mix.cut().is_some());
        }
        assert!((880..1_120).contains(&none), "{none}");
        assert!((1_840..2_160).contains(&cut), "{cut}");
        let nothing = Mixup::new().draw(
            &mut SampleRng::for_batch(RngKey {
                seed: 3,
                epoch: 1,
                position: 0,
            }),
            16,
            16,
        );
        assert_eq!((nothing.is_none(), nothing.lambda()), (true, 1.0));
    }

    #[test]
    #[should_panic(expected = "MixupDraw::cutmix: rows 3..9")]
    fn a_box_beyond_the_picture_is_refused() {
        _ = MixupDraw::cutmix([8, 8], 3..9, 0..2);
    }
}
