//! A data set, a sampler, samples and batches of one's own, each of whose functions can fail on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinfeed::collate::{Relocation, Tensors, Upload};
use pinfeed::error::CollateError;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::sampler::Sampler;
use pinfeed::{Batch, BoxError, Dataset, Sample, SampleRng, Tensor};

/// How many samples there are, in batches of how many.
pub const SAMPLES: u64 = 23;
pub const BATCH: usize = 4;

/// Where something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Get,
    GetPanics,
    GetPanicsOddly,
    Describe,
    MapPanics,
    SamplerPanics,
    SamplerLeaves,
    Plan,
    PlanPanics,
    Fill,
    FillPanics,
    FillForgets,
    FinishPanics,
    SampleDrop,
    TensorsPanics,
    RelocatePanics,
    Collate,
    CollatePanics,
}

pub const STACKED: &[Place] = &[
    Place::Get,
    Place::GetPanics,
    Place::GetPanicsOddly,
    Place::Describe,
    Place::MapPanics,
    Place::SamplerPanics,
    Place::SamplerLeaves,
    Place::Plan,
    Place::PlanPanics,
    Place::Fill,
    Place::FillPanics,
    Place::FillForgets,
    Place::FinishPanics,
    Place::SampleDrop,
    Place::TensorsPanics,
    Place::RelocatePanics,
];

pub const COLLATED: &[Place] = &[
    Place::Get,
    Place::GetPanics,
    Place::SampleDrop,
    Place::Collate,
    Place::CollatePanics,
    Place::TensorsPanics,
    Place::RelocatePanics,
];

/// What goes wrong, and at which index; shared with the data set, so that it can be mended between epochs.
pub struct Trap {
    pub place: Place,
    pub index: AtomicU64,
}

/// No index.
pub const MENDED: u64 = u64::MAX;

impl Trap {
    pub fn new(place: Place, index: u64) -> Arc<Trap> {
        let index = AtomicU64::new(index);
        Arc::new(Trap { place, index })
    }

    pub fn strikes(&self, place: Place, index: u64) -> bool {
        self.place == place && self.index.load(Ordering::Relaxed) == index
    }
}

/// A sample whose every function may fail. `ALIKE`: planned from one sample, or from all of the batch.
pub struct Mine<const ALIKE: bool> {
    pub index: u64,
    pub trap: Arc<Trap>,
}

impl<const ALIKE: bool> Mine<ALIKE> {
    pub fn strikes(&self, place: Place) -> bool {
        self.trap.strikes(place, self.index)
    }

    /// Any sample may be the one that the batch is planned from.
    pub fn batch_strikes(&self, place: Place) -> bool {
        let trapped = self.trap.index.load(Ordering::Relaxed) / BATCH as u64;
        self.trap.place == place && trapped == self.index / BATCH as u64
    }
}

impl<const ALIKE: bool> Drop for Mine<ALIKE> {
    fn drop(&mut self) {
        assert!(
            !self.strikes(Place::SampleDrop) || std::thread::panicking(),
            "a sample's drop panics"
        );
    }
}

impl<const ALIKE: bool> Sample for Mine<ALIKE> {
    type Batch = Own;
    type Plan = Field<i64>;
    type Rest = Option<Place>;
    const ALIKE: bool = ALIKE;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<i64>, CollateError> {
        if samples
            .clone()
            .any(|sample| sample.batch_strikes(Place::Plan))
        {
            return Err(CollateError::Other("no plan".into()));
        }
        assert!(
            !samples.any(|sample| sample.batch_strikes(Place::PlanPanics)),
            "plan panics"
        );
        layout.field(&[2])
    }

    fn fill(self, plan: &Field<i64>, row: &mut Row<'_>) -> Result<Option<Place>, CollateError> {
        assert!(!self.strikes(Place::FillPanics), "fill panics");
        if self.strikes(Place::Fill) {
            return Err(CollateError::Other("no fill".into()));
        }
        if !self.strikes(Place::FillForgets) {
            row.write(plan, &[self.index as i64, -(self.index as i64)])?;
        }
        let struck = self.trap.index.load(Ordering::Relaxed) == self.index;
        Ok(struck.then_some(self.trap.place))
    }

    fn finish(plan: Field<i64>, rest: Vec<Option<Place>>, filled: &mut Filled) -> Own {
        let trap = rest.into_iter().flatten().next();
        assert_ne!(trap, Some(Place::FinishPanics), "finish panics");
        let numbers = filled.take(plan);
        Own { numbers, trap }
    }
}

/// A batch of one's own whose functions may panic.
pub struct Own {
    pub numbers: Tensor<i64>,
    pub trap: Option<Place>,
}

impl Batch for Own {
    type OnDevice = pinfeed::DeviceTensor<i64>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        assert_ne!(self.trap, Some(Place::TensorsPanics), "tensors panics");
        visit.add(&self.numbers);
    }

    fn relocate(self, slab: &mut Relocation) -> Own {
        assert_ne!(self.trap, Some(Place::RelocatePanics), "relocate panics");
        Own {
            numbers: slab.tensor(self.numbers),
            trap: self.trap,
        }
    }

    fn upload(self, upload: &mut Upload) -> Self::OnDevice {
        upload.tensor(self.numbers)
    }
}

/// A data set of samples that fail at one index.
pub struct Trapped<const ALIKE: bool>(pub Arc<Trap>);

/// A panic's payload that is no message, and that panics once more when it is dropped.
struct Odd;

impl Drop for Odd {
    fn drop(&mut self) {
        panic!("a panic's payload panics");
    }
}

impl<const ALIKE: bool> Dataset for Trapped<ALIKE> {
    type Sample = Mine<ALIKE>;

    fn len(&self) -> u64 {
        SAMPLES
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Mine<ALIKE>, BoxError> {
        let strikes = |place| self.0.strikes(place, index);
        if strikes(Place::Get) || strikes(Place::Describe) {
            return Err("no sample".into());
        }
        assert!(!strikes(Place::GetPanics), "get panics");
        if strikes(Place::GetPanicsOddly) {
            std::panic::panic_any(Odd);
        }
        let trap = Arc::clone(&self.0);
        Ok(Mine { index, trap })
    }

    fn describe(&self, index: u64) -> Option<String> {
        assert!(!self.0.strikes(Place::Describe, index), "describe panics");
        Some(format!("number {index}"))
    }
}

/// The plain order, but for one position.
pub struct Order(pub Arc<Trap>);

impl Sampler for Order {
    fn len(&self) -> u64 {
        SAMPLES
    }

    fn index(&self, _: u64, position: u64) -> u64 {
        assert!(
            !self.0.strikes(Place::SamplerPanics, position),
            "the sampler panics"
        );
        if self.0.strikes(Place::SamplerLeaves, position) {
            return SAMPLES + 7;
        }
        position
    }
}
