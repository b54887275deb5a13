//! `train`: a device step of a fixed length, fed by the pipeline of `jpeg` across epochs. How much of the time has the device
//! no work?
//!
//! 54.6 ms for 256 images are 4,690 images/s. The baseline are the same steps over one batch that lies on the device, while no
//! loader is alive: what the loop takes longer, the device waited, for batches or for their normalisation.

#[cfg(not(feature = "image"))]
pub fn run(_: &crate::args::Args, _: &mut crate::report::Report) -> crate::Outcome {
    Err("JPEGs need the feature `image`".into())
}

#[cfg(feature = "image")]
pub use images::run;

#[cfg(feature = "image")]
mod images {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use pinfeed::ops::Normalize;
    use pinfeed::{Batch, Device, Stream, Tensor};

    use crate::Outcome;
    use crate::args::{Args, Decoder};
    use crate::drive::{Arrived, ms};
    use crate::jpeg::{DECODER, Decoded, SIDE, folder, loader};
    use crate::report::{Record, Report};
    use crate::step::{self, Run, Stepper};
    use crate::target::Target;
    use crate::window::Waits;

    const STEP_MS: f64 = 54.6;

    pub fn run(args: &Args, report: &mut Report) -> Outcome {
        let folder = folder(args)?;
        for &name in &args.devices {
            let target = Target::open(name)?;
            let few: &[usize] = match args.decode {
                Decoder::Cpu => &[16, 8, 4],
                Decoder::Device | Decoder::Both => &[4, 2],
            };
            for &workers in &args.workers(few) {
                for &batch_size in &args.batch_sizes(256) {
                    let device = target.device()?;
                    let train = Train {
                        args,
                        target: &target,
                        stream: device.stream()?,
                        device: &device,
                        step: args.step(STEP_MS),
                        workers,
                        batch_size,
                    };
                    report.print(&train.measure(&folder)?);
                }
            }
        }
        Ok(())
    }

    struct Train<'a> {
        args: &'a Args,
        target: &'a Target,
        device: &'a Device,
        stream: Stream,
        step: Duration,
        workers: usize,
        batch_size: usize,
    }

    impl Train<'_> {
        fn measure(&self, folder: &Path) -> Outcome<Record> {
            let seconds = self.args.seconds(10.0).as_secs_f64();
            let steps = ((seconds / self.step.as_secs_f64()) as u64).max(20);
            let before = self.baseline(steps)?;
            let (mut fed, boundaries, decoded) = self.fed(folder, steps)?;
            let after = self.baseline(steps)?;
            let baseline = (before.seconds_per_step + after.seconds_per_step) / 2.0;

            let mut record = Record::new("train", self.target.name)
                .measured(&fed.measured)
                .waited(&mut fed.waits);
            record.workers = Some(self.workers);
            record.batch_size = Some(self.batch_size);
            record.dtype = Some("u8");
            record.batches_s = Some(1.0 / fed.seconds_per_step);
            record.samples_s = Some(self.batch_size as f64 / fed.seconds_per_step);
            record.pinned_mb = Some(self.device.memory().pinned_bytes as f64 / 1e6);
            Ok(decoded
                .record(record)
                .with("decoder", DECODER)
                .with_number("idle_share", 1.0 - baseline / fed.seconds_per_step)
                .with_number("step_ms", ms(self.step))
                .with_number("baseline_step_ms", baseline * 1e3)
                .with_number("loaded_step_ms", fed.seconds_per_step * 1e3)
                .with("steps", steps)
                .with("boundaries", boundaries)
                .with("prefetch", self.args.prefetch(self.workers)))
        }

        /// The loop over batches that are loaded beside it, how many boundaries between epochs it crossed, and who decoded.
        fn fed(&self, folder: &Path, steps: u64) -> Outcome<(Run, u64, Decoded)> {
            let pinned = Some(self.device);
            let loader = loader(self.args, folder, self.workers, self.batch_size, pinned)?;
            if loader.is_empty() {
                return Err("the folder does not fill one batch: raise --samples".into());
            }
            let mut epochs = loader
                .epochs(0..)
                .prefetch_to_device(self.device, self.args.depth);
            let mut epoch = epochs.next().ok_or("there are epochs without end")?;
            let mut boundaries = 0;
            let run = self.run(steps, |stepper, waits| {
                let asked = Instant::now();
                let (images, labels) = loop {
                    if let Some(batch) = epoch.next() {
                        break batch?;
                    }
                    epoch = epochs.next().ok_or("there are epochs without end")?;
                    boundaries += 1;
                };
                waits.push(asked.elapsed());
                // Bytes become normalised `f32`, and the step works on them.
                let batch = (images.normalize::<f32>(&Normalize::IMAGENET)?, labels);
                batch.with(&self.stream, &mut || stepper.step())?;
                Ok(())
            })?;
            Ok((run, boundaries, Decoded::of(self.args, &loader)?))
        }

        /// The loop over one batch that is there, with no loader alive.
        fn baseline(&self, steps: u64) -> Outcome<Run> {
            let images = Tensor::<f32>::zeros(&[self.batch_size, 3, SIDE, SIDE]);
            let there = images.to_device(self.device, false)?;
            self.run(steps, |stepper, _| {
                there.with(&self.stream, &mut || stepper.step())?;
                Ok(())
            })
        }

        fn run(
            &self,
            steps: u64,
            step: impl FnMut(&mut Stepper<'_>, &mut Waits) -> Outcome,
        ) -> Outcome<Run> {
            step::run(self.target, &self.stream, self.step, steps, step)
        }
    }
}
