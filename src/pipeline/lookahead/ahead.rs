//! The cursor of a pass, [`Ahead`]: which samples are announced next, which are being told, and before which position all are done with.

use std::collections::VecDeque;
use std::ops::Range;

use super::listener::Listener;
use super::loaded::Loaded;
use crate::dataset::Pass;
use crate::pipeline::plan::indices::{Indices, Sampled};
use crate::pipeline::plan::partition::{EpochOrder, Partition, Place, Start};
use crate::tuning::ROWS_AT_ONCE;

/// How far a pass has been announced.
pub(super) struct Ahead {
    pub(super) pass: Pass,
    pub(super) start: Start,
    pub(super) samples: Samples,
    /// The batch and the row that are announced next.
    pub(super) batch: u64,
    pub(super) row: u64,
    pub(super) announced: u64,
    /// How many samples there are, in order, up to the last whose loading has begun.
    pub(super) begun: u64,
    /// How many samples lie before each batch, from the first that is not settled to the one that is announced next.
    starts: VecDeque<u64>,
    /// The number of the first of these batches.
    first: u64,
    /// Those that workers are done with, by their numbers.
    pub(super) loaded: Loaded,
    /// The data set has the blocks that the pass needs, and is not told of their samples.
    pub(super) has_openings: bool,
    /// The data set was told that samples before this position are done with.
    told: u64,
    /// What the data set is being told at this moment, as ranges of samples.
    pub(super) calls: Vec<Range<u64>>,
    /// The data set is told that the pass begins, or was.
    pub(super) has_begun: bool,
    pub(super) is_over: bool,
}

/// Which samples a pass has.
pub(super) enum Samples {
    /// The batch sampler was not asked yet.
    Unknown,
    Asking,
    Known {
        partition: Partition,
        order: EpochOrder,
        batches: u64,
    },
}

/// Samples of one batch that are to be announced.
pub(super) struct Run {
    has_openings: bool,
    pub(super) pass: Pass,
    order: EpochOrder,
    /// The whole batch.
    place: Place,
    pub(super) rows: Range<usize>,
}

pub(super) fn find(passes: &mut VecDeque<Ahead>, id: u64) -> Option<&mut Ahead> {
    passes.iter_mut().find(|ahead| ahead.pass.id() == id)
}

impl Samples {
    pub(super) fn new(partition: Partition, order: EpochOrder, epoch: u64) -> Samples {
        let is_refused =
            matches!(&order, EpochOrder::Listed(listed) if listed.check(epoch).is_err());
        Samples::Known {
            batches: if is_refused { 0 } else { partition.batches() },
            partition,
            order,
        }
    }
}

impl Ahead {
    /// A pass that begins there, of which nothing is announced.
    pub(super) fn new(pass: Pass, start: Start) -> Ahead {
        Ahead {
            pass,
            start,
            samples: Samples::Unknown,
            batch: 0,
            row: 0,
            announced: 0,
            begun: 0,
            starts: VecDeque::from([0]),
            first: 0,
            loaded: Loaded::default(),
            has_openings: false,
            told: 0,
            calls: Vec::new(),
            has_begun: false,
            is_over: false,
        }
    }

    /// How many samples are announced whose loading has not begun.
    pub(super) fn ahead(&self) -> u64 {
        match self.is_over {
            true => 0,
            false => self.announced - self.begun,
        }
    }

    /// Whether a row is announced later.
    pub(super) fn is_before(&self, batch: u64, row: u64) -> bool {
        (self.batch, self.row) < (batch, row)
    }

    /// How many samples there are up to a row that was announced; `None` if that is not known any more.
    pub(super) fn number(&self, batch: u64, row: u64) -> Option<u64> {
        let start = self
            .starts
            .get(usize::try_from(batch.checked_sub(self.first)?).ok()?)?;
        Some(start + row)
    }

    /// These batches are done with.
    pub(super) fn settle(&mut self, batches: u64) {
        while self.first < batches.min(self.batch) {
            self.first += 1;
            self.starts.pop_front();
        }
        self.pass.settled = self.starts.front().copied().unwrap_or(0);
        // Of a batch that failed, the last rows may never have been begun.
        self.begun = self.begun.max(self.pass.settled);
        self.loaded.settle(self.pass.settled);
    }

    /// The position before which all samples are done with: they were loaded, or their batches are settled.
    fn done(&self) -> u64 {
        let Samples::Known { partition, .. } = &self.samples else {
            return 0;
        };
        let number = self.loaded.all_before();
        // The last of the batches that begin there: those before it are empty, or were given out before.
        let batch = self.starts.partition_point(|start| *start <= number);
        let Some(batch) = batch.checked_sub(1) else {
            return 0;
        };
        let row = number - self.starts[batch];
        partition.position_before(self.start.epoch, self.first + batch as u64, row)
    }

    /// The pass, if the data set is to be told that more of it is done with.
    pub(super) fn take_news(&mut self) -> Option<Pass> {
        self.pass.done = self.done();
        let is_more = self.pass.done > self.told;
        self.told = self.pass.done;
        is_more.then_some(self.pass)
    }

    /// What is announced next: `most` samples of one batch at most.
    pub(super) fn next_run(&mut self, most: u64) -> Option<Run> {
        let Samples::Known {
            partition,
            order,
            batches,
        } = &self.samples
        else {
            return None;
        };
        // What was given out before, in any order, is not loaded again.
        while self.start.given.contains(self.batch) {
            self.batch += 1;
            self.starts.push_back(self.announced);
        }
        if self.batch >= *batches {
            return None;
        }
        let place = partition.batch_place(self.start.epoch, self.batch);
        self.pass.reached = partition.position_after(self.batch + 1);
        let count = (place.rows as u64 - self.row).min(most);
        let rows = self.row as usize..(self.row + count) as usize;
        self.announced += count;
        self.row += count;
        if self.row == place.rows as u64 {
            (self.batch, self.row) = (self.batch + 1, 0);
            self.starts.push_back(self.announced);
        }
        self.pass.announced = self.announced;
        self.calls.push(self.announced - count..self.announced);
        Some(Run {
            has_openings: self.has_openings,
            pass: self.pass,
            order: order.clone(),
            place,
            rows,
        })
    }
}

impl Run {
    pub(super) fn tell(self, listener: &dyn Listener, sampled: &Sampled) {
        let mut indices = Indices::new(&self.order, self.place, self.rows.end, sampled);
        let (mut coming, mut count) = ([0; ROWS_AT_ONCE], 0);
        let mut row = match self.has_openings {
            // Filler repeats samples whose blocks may be done with.
            true => self.rows.start.max(self.place.real_rows()),
            false => self.rows.start,
        };
        if row >= self.rows.end {
            listener.will_need(&[], self.pass);
        }
        // If the order is wrong, that is an error when these samples are loaded.
        while row < self.rows.end {
            let found = indices.look_up(row);
            if found.is_empty() {
                break;
            }
            row += found.len();
            let len = listener.samples();
            for index in found.iter().filter(|index| **index < len) {
                coming[count] = *index;
                count += 1;
                if count == coming.len() {
                    listener.will_need(&coming, self.pass);
                    count = 0;
                }
            }
        }
        if count > 0 {
            listener.will_need(&coming[..count], self.pass);
        }
    }
}
