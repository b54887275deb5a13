//! The share of pictures that a device decodes where the CPU decodes the others: the program's, that of the run which goes on, or measured
//! in the first batches. Then it is fixed.
//!
//! While it is measured, the device decodes nothing until its decoder is ready, and then a share that each measurement corrects. A share
//! holds for positions of an order, from the first one that was not opened yet. So whether the device or the CPU decodes a row does not
//! depend on which worker makes its task, or when.

use crate::meter::Meter;
use crate::pipeline::plan::partition::Place;
use crate::sync::{Mutex, Ordering};
use crate::tensor::{OwnPictures, WHOLE_SHARE};
use crate::tuning::{
    BATCHES_WATCHED, FIRST_DECODER_SHARE, LIKE_DECODER_SHARES, MOST_BATCHES_MEASURED, WORKERS_BUSY,
};

/// A place in a run: an epoch, and a position in its order.
type At = (u64, u64);

/// A loader's share.
pub(crate) struct DecoderShare(Mutex<Found>);

/// What is known of it.
#[derive(Debug)]
struct Found {
    /// Which share holds from which place on; the places ascend. Before the first, it is 0.
    steps: Vec<(At, u8)>,
    /// The last of them holds for good.
    is_fixed: bool,
    /// Behind all tasks that were opened so far.
    opened: At,
    /// The last batch that was given out with the share that is tried.
    mark: Option<Mark>,
    /// What was counted with it so far, of how many batches.
    seen: Counted,
    watched: u64,
    /// The program's own time for a sample of each of them, in nanoseconds.
    host_ns: Vec<f64>,
    /// How many batches were measured, and how many answers were like those before them.
    batches: u64,
    likes: u32,
}

/// What the counters of an epoch had reached when one of its batches was given out.
#[derive(Debug, Clone, Copy)]
struct Mark {
    epoch: u64,
    given: u64,
    counted: Counted,
}

/// What is counted of an epoch's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counted {
    samples: u64,
    /// What workers did: decoding, and all else.
    decoding_ns: u64,
    other_ns: u64,
    /// The pictures that were to be the device's and the CPU decoded; those that the device decoded, and how long that took.
    left_to_cpu: u64,
    decoded: u64,
    decoder_ns: u64,
    /// The program's own time.
    host_ns: u64,
}

/// A batch that the consumer is given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched {
    pub(crate) epoch: u64,
    /// The position of its first row.
    pub(crate) position: u64,
    /// How many rows it has.
    pub(crate) rows: usize,
    /// How many of its epoch were given out before.
    pub(crate) given: u64,
    /// How many workers load.
    pub(crate) workers: usize,
    /// The device's decoder can decode, or says why it cannot.
    pub(crate) is_decoder_ready: bool,
}

impl DecoderShare {
    /// `given`: what the program wants, of 64 pictures.
    pub(crate) fn new(given: Option<u8>) -> DecoderShare {
        DecoderShare(Mutex::new(Found {
            steps: given.map(|share| ((0, 0), share)).into_iter().collect(),
            is_fixed: given.is_some(),
            opened: (0, 0),
            mark: None,
            seen: Counted::default(),
            watched: 0,
            host_ns: Vec::new(),
            batches: 0,
            likes: 0,
        }))
    }

    /// Goes on with what the run had before, unless the program wants another share.
    pub(crate) fn resume(&self, share: u8) {
        let mut found = self.0.lock();
        if !found.is_fixed {
            (found.steps, found.is_fixed) = (vec![((0, 0), share)], true);
        }
    }

    /// An epoch begins at such a place; none of its tasks is opened.
    pub(crate) fn begins(&self, place: &Place) {
        self.0.lock().begins((place.epoch, place.start));
    }

    /// Which rows of a task that is about to be made are the device's.
    pub(crate) fn of_task(&self, seed: u64, place: &Place) -> OwnPictures {
        OwnPictures {
            share: self.0.lock().open(place),
            seed,
            epoch: place.epoch,
            start: place.start,
            step: place.step,
        }
    }

    /// The share that is fixed, if a run has it from this place on.
    pub(crate) fn from(&self, epoch: u64, position: u64) -> Option<u8> {
        let found = self.0.lock();
        let (at, share) = found.steps.last().filter(|_| found.is_fixed)?;
        ((epoch, position) >= *at).then_some(*share)
    }

    /// The share that is fixed.
    pub(crate) fn fixed(&self) -> Option<u8> {
        let found = self.0.lock();
        let (_, share) = found.steps.last().filter(|_| found.is_fixed)?;
        Some(*share)
    }

    /// The consumer is given a batch, of an epoch that this meter counts for.
    pub(crate) fn watch(&self, batch: Watched, meter: &Meter) {
        // A device that decodes all of its pictures has no share of them.
        if !meter.shares_pictures.load(Ordering::Relaxed) {
            return;
        }
        let mut found = self.0.lock();
        if !found.is_fixed {
            found.watch(batch, Counted::of(meter));
        }
    }
}

impl Found {
    /// An epoch before what was opened begins with the last share: the program gives the same epochs again.
    fn begins(&mut self, at: At) {
        if at >= self.opened {
            return;
        }
        // (From the very beginning: epochs of other consumers may be under way, before this one and behind it.)
        let last = self.steps.last().map(|(_, share)| ((0, 0), *share));
        self.steps = last.into_iter().collect();
        self.opened = at;
        self.mark = None;
    }

    /// The share that holds for a task.
    fn open(&mut self, place: &Place) -> u8 {
        let at = (place.epoch, place.start);
        let end = place.key(place.rows.saturating_sub(1)).saturating_add(1);
        self.opened = self.opened.max((place.epoch, end));
        let step = self.steps.iter().rev().find(|(from, _)| *from <= at);
        step.map_or(0, |(_, share)| *share)
    }

    fn watch(&mut self, batch: Watched, counted: Counted) {
        let Some((since, share)) = self.steps.last().copied() else {
            if batch.is_decoder_ready {
                self.steps.push((self.opened, FIRST_DECODER_SHARE));
            }
            return;
        };
        if (batch.epoch, batch.position) < since {
            return; // it had another share, and others with it may not be made yet
        }
        let now = Mark {
            epoch: batch.epoch,
            given: batch.given,
            counted,
        };
        // (Epochs count from 0, so each one's first batch only marks.)
        let before = self.mark.replace(now);
        let Some(mark) = before.filter(|mark| mark.epoch == now.epoch) else {
            return;
        };
        let (since, given) = (
            counted.since(mark.counted),
            now.given.saturating_sub(mark.given),
        );
        self.seen.add(since);
        self.watched += given;
        let samples = given.max(1) as f64 * batch.rows.max(1) as f64;
        self.host_ns.push(since.host_ns as f64 / samples);
        if self.watched < BATCHES_WATCHED {
            return;
        }
        let host_ns = median(&mut self.host_ns);
        let Some(answer) = self.seen.best_share(share, batch.workers, host_ns) else {
            return; // nothing was made meanwhile
        };
        self.batches += self.watched;
        (self.mark, self.seen, self.watched) = (None, Counted::default(), 0);
        self.host_ns.clear();
        match answer.abs_diff(share) <= LIKE_DECODER_SHARES {
            true => self.likes += 1,
            false => self.likes = 0,
        }
        self.is_fixed = self.likes >= 2 || self.batches >= MOST_BATCHES_MEASURED;
        if answer != share {
            self.steps.push((self.opened, answer));
        }
    }
}

/// What a program usually takes: among its steps may be one that also saves a model, validates it, or is the first and compiles it.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

impl Counted {
    fn of(meter: &Meter) -> Counted {
        Counted {
            samples: meter.samples.get(),
            decoding_ns: meter.decoding_ns.get(),
            other_ns: meter.loading_ns.get() + meter.collating_ns.get(),
            left_to_cpu: meter.left_to_cpu.lock().values().sum(),
            decoded: meter.device_decoded.get(),
            decoder_ns: meter.device_decoding_ns.get(),
            host_ns: meter.host_ns.get(),
        }
    }

    fn since(self, before: Counted) -> Counted {
        Counted {
            samples: self.samples.saturating_sub(before.samples),
            decoding_ns: self.decoding_ns.saturating_sub(before.decoding_ns),
            other_ns: self.other_ns.saturating_sub(before.other_ns),
            left_to_cpu: self.left_to_cpu.saturating_sub(before.left_to_cpu),
            decoded: self.decoded.saturating_sub(before.decoded),
            decoder_ns: self.decoder_ns.saturating_sub(before.decoder_ns),
            host_ns: self.host_ns.saturating_sub(before.host_ns),
        }
    }

    fn add(&mut self, more: Counted) {
        self.samples += more.samples;
        self.decoding_ns += more.decoding_ns;
        self.other_ns += more.other_ns;
        self.left_to_cpu += more.left_to_cpu;
        self.decoded += more.decoded;
        self.decoder_ns += more.decoder_ns;
        self.host_ns += more.host_ns;
    }

    /// The best share, after batches with this one: as much as the program needs, if so many workers are to keep up with it, but no more
    /// than lets decoder and workers end together. The program takes `host` nanoseconds for each that it is given. `None`: nothing was
    /// counted.
    fn best_share(self, share: u8, workers: usize, host: f64) -> Option<u8> {
        if self.samples == 0 {
            return None;
        }
        let whole = f64::from(WHOLE_SHARE);
        let samples = self.samples as f64;
        let given = samples * f64::from(share) / whole;
        let by_cpu = samples - given + (self.left_to_cpu as f64).min(given);
        if by_cpu < 1.0 {
            return Some(share); // it is not known how long the CPU takes
        }
        // Each in nanoseconds for a picture.
        let decoding = self.decoding_ns as f64 / by_cpu;
        let other = self.other_ns as f64 / samples;
        let workers = workers.max(1) as f64;
        // Workers take `other + (1 - share) * decoding` for a picture, the decoder `share * decoder`, and the program `host`.
        let needed = 1.0 - (WORKERS_BUSY * workers * host - other) / decoding.max(1.0);
        let balance = match self.decoded {
            // It was given none: it is to be tried.
            0 if share == 0 => f64::from(FIRST_DECODER_SHARE) / whole,
            0 => 0.0, // it decodes none of these pictures
            decoded => {
                let decoder = self.decoder_ns as f64 / decoded as f64;
                (other + decoding) / (workers * decoder + decoding)
            }
        };
        let best = needed.min(balance).clamp(0.0, 1.0);
        Some((best * whole).ceil() as u8)
    }
}

#[cfg(test)]
mod tests;
