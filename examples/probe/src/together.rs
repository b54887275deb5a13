//! All GPUs at once. Each copies as it does alone; what they reach together, the host's memory and the links above them allow.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::Result;
use crate::copies::{Link, moved};
use crate::driver::Bare;
use crate::effort::{Effort, figure};
use crate::report::{DeviceReport, Figure, Memory, Together, TogetherDevice, TogetherWay, Way};

/// One copy.
const BYTES: usize = 64 << 20;

/// A device that was measured alone before.
pub struct Alone<'a> {
    pub report: &'a DeviceReport,
    pub ordinal: usize,
}

pub fn measure(effort: &Effort, devices: &[Alone<'_>]) -> Result<Together> {
    let largest = effort.sizes.last();
    let bytes = largest.map_or(BYTES, |largest| BYTES.min(*largest));
    let ways = [Way::ToDevice, Way::Back, Way::Both];
    let ways = ways.map(|way| of_way(effort, devices, bytes, way));
    Ok(Together {
        bytes,
        ways: ways.into_iter().collect::<Result<_>>()?,
    })
}

fn of_way(effort: &Effort, devices: &[Alone<'_>], bytes: usize, way: Way) -> Result<TogetherWay> {
    let alone = devices.iter().map(|device| {
        let best = device.report.best_gb_s(Memory::Pinned, way);
        best.ok_or_else(|| format!("{} was not measured alone", device.report.id))
    });
    let alone: Vec<f64> = alone.collect::<Result<_, _>>()?;
    let ordinals: Vec<usize> = devices.iter().map(|device| device.ordinal).collect();
    let rates = rates(effort, &ordinals, bytes, way)?;
    let of_devices = devices.iter().zip(&alone).enumerate();
    let of_devices = of_devices.map(|(index, (device, alone_gb_s))| {
        Ok(TogetherDevice {
            id: device.report.id.clone(),
            alone_gb_s: *alone_gb_s,
            gb_s: of_rounds(&rates, |rates| rates[index])?,
        })
    });
    Ok(TogetherWay {
        way,
        devices: of_devices.collect::<Result<_>>()?,
        sum_gb_s: of_rounds(&rates, |rates| rates.iter().sum())?,
        sum_alone_gb_s: alone.iter().sum(),
    })
}

fn of_rounds(rounds: &[Vec<f64>], of_round: impl Fn(&[f64]) -> f64) -> Result<Figure> {
    let values = rounds.iter().map(|rates| of_round(rates)).collect();
    figure(values).ok_or_else(|| "nothing was measured".into())
}

/// GB/s of each device, round by round. In each round, all begin at once.
fn rates(effort: &Effort, ordinals: &[usize], bytes: usize, way: Way) -> Result<Vec<Vec<f64>>> {
    let (begins, rounds) = (Barrier::new(ordinals.len()), effort.windows);
    let of_device = |ordinal: usize| -> Result<Vec<f64>> {
        let bare = Bare::new(ordinal);
        let mut buffers = match &bare {
            Ok(bare) => bare.buffers(bytes),
            Err(error) => Err(error.to_string().into()),
        };
        let mut rates = Vec::new();
        let mut failed = None;
        for round in 0..=rounds {
            begins.wait(); // also where the device failed: the others wait
            let Ok(buffers) = &mut buffers else { continue };
            let (mut copied, begun) = (0.0, Instant::now());
            while failed.is_none() && (copied == 0.0 || begun.elapsed() < effort.window / 2) {
                // Two in a row: the next one is enqueued while one is under way.
                match buffers.seconds(Memory::Pinned, way, bytes, 2) {
                    Ok(_) => copied += moved(way, 2 * bytes),
                    Err(error) => failed = Some(error),
                }
            }
            // The first round does not count.
            if round > 0 {
                rates.push(copied / begun.elapsed().as_secs_f64() / 1e9);
            }
        }
        buffers?;
        failed.map_or(Ok(rates), Err)
    };
    let of_devices: Result<Vec<Vec<f64>>> = thread::scope(|scope| {
        let of_device = &of_device;
        let threads: Vec<_> = ordinals
            .iter()
            .map(|ordinal| scope.spawn(move || of_device(*ordinal)))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_| Err("a copying thread panicked".into()))
        });
        joined.collect()
    });
    let of_devices = of_devices?;
    let round = |round| of_devices.iter().map(|rates| rates[round]).collect();
    Ok((0..rounds).map(round).collect())
}
