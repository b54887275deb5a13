//! `roundtrip`: one batch of ten frames of 3x3840x2160 `f32` (0.995 GB) to the device and back, again and again.
//!
//! - `pageable`: from ordinary memory, and into ordinary memory that is used again.
//! - `pin_each`: page-locked afresh in each step, both ways: the page-locking is part of the time.
//! - `reused`: page-locked once; each step copies into the same device tensor, and back into the same memory.
//! - `view`: the same memory by `to_device` of a view, as a batch travels.
//!
//! It is held against bare pinned copies each way. A last step, after the window, is compared with the source.

use std::time::{Duration, Instant};

use pinfeed::{Batch, Device, DeviceTensor, Tensor};

use crate::Outcome;
use crate::args::Args;
use crate::data;
use crate::drive::mean;
use crate::gather::Direction;
use crate::report::{Record, Report};
use crate::target::Target;
use crate::window::Window;

const FRAME: [usize; 3] = [3, 3840, 2160];

/// Each variant is measured at least so often, whatever the time.
const LEAST_STEPS: u32 = 3;

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    let [channels, height, width] = FRAME;
    let shape = [args.frames, channels, height, width];
    for &name in &args.devices {
        let target = Target::open(name)?;
        for variant in args.variants(&["pageable", "pin_each", "reused", "view"], 4) {
            measure(args, &target, variant, &shape, report)?;
        }
    }
    Ok(())
}

fn measure(
    args: &Args,
    target: &Target,
    variant: &'static str,
    shape: &[usize],
    report: &mut Report,
) -> Outcome {
    let bytes = shape.iter().product::<usize>() * size_of::<f32>();
    let limits = || -> Outcome<[f64; 2]> {
        Ok([
            target.copy_limit(Direction::ToDevice, bytes)?,
            target.copy_limit(Direction::ToHost, bytes)?,
        ])
    };
    let before = limits()?;
    let mut trip = Trip::new(variant, target.device()?, shape, args.seed)?;
    trip.step()?;
    trip.step()?;
    let made = trip.device.memory().slabs_made;

    let (mut to, mut back, mut steps) = (Duration::ZERO, Duration::ZERO, 0);
    let window = Window::begin();
    let end = window.begun() + args.seconds(5.0);
    while steps < LEAST_STEPS || Instant::now() < end {
        let step = trip.step()?;
        (to, back, steps) = (to + step.0, back + step.1, steps + 1);
    }
    let measured = window.end();
    let memory = trip.device.memory();
    trip.check()?;
    let back_pinned = trip.back.as_ref().map(Tensor::is_pinned);
    drop(trip);
    let after = limits()?;

    let ways = [(Direction::ToDevice, to), (Direction::ToHost, back)];
    for (index, (direction, time)) in ways.into_iter().enumerate() {
        let mut record = Record::new("roundtrip", target.name).measured(&measured);
        record.batch_size = Some(args.frames);
        record.dtype = Some("f32");
        record.gb_s = Some(bytes as f64 * f64::from(steps) / time.as_secs_f64() / 1e9);
        record.limit_gb_s = Some(mean(before[index], after[index]));
        record.pinned_mb = Some(memory.pinned_bytes as f64 / 1e6);
        let record = record
            .with("variant", variant)
            .with("direction", direction.name())
            .with("size_bytes", bytes)
            .with("steps", steps)
            .with_number("ms_per_step", time.as_secs_f64() * 1e3 / f64::from(steps))
            .with_number("limit_before_gb_s", before[index])
            .with_number("limit_after_gb_s", after[index])
            .with("back_is_pinned", back_pinned)
            .with("slabs_made_after_warmup", memory.slabs_made - made);
        report.print(&record);
    }
    Ok(())
}

struct Trip {
    variant: &'static str,
    source: Tensor<f32>,
    there: Option<DeviceTensor<f32>>,
    back: Option<Tensor<f32>>,
    device: Device,
}

impl Trip {
    fn new(variant: &'static str, device: Device, shape: &[usize], seed: u64) -> Outcome<Trip> {
        let mut source = data::random::<f32>(shape, seed)?;
        // Written, so that its pages exist.
        let mut back = Some(data::random::<f32>(shape, seed + 1)?);
        let mut there = None;
        match variant {
            "pageable" => {}
            "pin_each" => back = None,
            _ => {
                source = source.pin(&device)?;
                back = back.map(|back| back.pin(&device)).transpose()?;
            }
        }
        if variant == "reused" {
            there = Some(source.view().to_device(&device, false)?);
        }
        Ok(Trip {
            variant,
            source,
            there,
            back,
            device,
        })
    }

    /// To the device and back; returns how long each took.
    fn step(&mut self) -> Outcome<(Duration, Duration)> {
        let pin_each = self.variant == "pin_each";
        if pin_each {
            self.back = None;
            self.device.release_pinned();
        }
        let begun = Instant::now();
        let there = match (self.variant, self.there.take()) {
            ("pin_each", _) => self
                .source
                .view()
                .pin(&self.device)?
                .to_device(&self.device, false)?,
            (_, Some(mut there)) => {
                there.copy_from_host(&self.source, false)?;
                there
            }
            (_, None) => self.source.view().to_device(&self.device, false)?,
        };
        let to = begun.elapsed();
        if pin_each {
            self.device.release_pinned();
        }
        let begun = Instant::now();
        let download = match self.back.take() {
            Some(back) => there.copy_to_host(back, false)?,
            None => there.to_host(false)?,
        };
        self.back = Some(download.wait()?);
        let back = begun.elapsed();
        if self.variant == "reused" {
            self.there = Some(there);
        }
        Ok((to, back))
    }

    /// Once more, into memory that holds something else, and compared.
    fn check(&mut self) -> Outcome {
        if let Some(back) = self.back.as_mut().and_then(Tensor::as_mut_slice) {
            back.fill(-1.0);
        }
        self.step()?;
        let back = self.back.as_ref().ok_or("nothing came back")?;
        let mut pairs = back.as_slice().iter().zip(self.source.as_slice());
        match pairs.position(|(back, source)| back != source) {
            Some(index) => Err(format!(
                "corrupted: element {index} came back as another ({})",
                self.variant
            )
            .into()),
            None => Ok(()),
        }
    }
}
