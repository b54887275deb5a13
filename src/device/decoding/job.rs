//! Rows that a device's decoder was handed, until all of them are made.

use std::collections::VecDeque;

use super::engine::Work;
use super::waiting::{Origin, Waiting};
use super::{EncodedRows, NotDecoded, WhenDecoded};
use crate::error::Error;
use crate::meter::Reasons;
use crate::picture::Sampling;
use crate::tensor::{DecodedIn, PictureRow, RowList, Scattered};

/// Rows that were handed over together.
pub(super) struct Job {
    pub(super) fields: Vec<EncodedRows>,
    pub(super) when_decoded: Option<WhenDecoded>,
    pub(super) waiting: Waiting,
    /// How many pictures are in chunks.
    pub(super) decoding: usize,
    /// The pictures that the decoder did not make: their fields, and why.
    pub(super) by_cpu: Vec<(usize, &'static str)>,
    pub(super) failed: Option<NotDecoded>,
    /// How long the decoder took for its pictures, of what it took for their chunks.
    pub(super) decoding_ns: u64,
}

impl Drop for Job {
    /// Tells the waiting thread that it failed, if its end was not told yet: otherwise that thread would wait for ever.
    fn drop(&mut self) {
        if let Some(when_decoded) = self.when_decoded.take() {
            let device = self.fields.first().map(EncodedRows::device);
            let error = Error::Decoder {
                device: device.unwrap_or_else(|| "the device".to_owned()),
                reason: "the thread that drives it has ended".to_owned(),
            };
            self.fields.clear(); // its slab is at home then
            when_decoded(Err(NotDecoded::Failed(error)));
        }
    }
}

impl Job {
    pub(super) fn new(fields: Vec<EncodedRows>, when_decoded: WhenDecoded) -> Job {
        let mut waiting = Waiting::default();
        for (field, rows) in fields.iter().enumerate() {
            for (number, picture) in pictures_of(rows).1.iter().enumerate() {
                waiting.push(picture.steps.drawing().sampling, field, number);
            }
        }
        Job {
            fields,
            when_decoded: Some(when_decoded),
            waiting,
            decoding: 0,
            by_cpu: Vec::new(),
            failed: None,
            decoding_ns: 0,
        }
    }

    pub(super) fn picture(&self, (_, field, picture): Origin) -> &PictureRow {
        &pictures_of(&self.fields[field]).1[picture]
    }

    pub(super) fn work(&self, origin: Origin) -> Work<'_> {
        let (_, field, picture) = origin;
        let (rows, pictures) = pictures_of(&self.fields[field]);
        let picture = &pictures[picture];
        Work {
            steps: &picture.steps,
            picture: &*picture.picture,
            file: rows.file_of(picture),
            row: self.fields[field].to + (picture.row * rows.row_bytes()) as u64,
        }
    }

    /// Its pictures that are in no chunk yet; `None` if it has failed.
    pub(super) fn waiting(&self) -> Option<&Waiting> {
        match self.failed {
            None => Some(&self.waiting),
            Some(_) => None,
        }
    }

    pub(super) fn sampling(&self, origin: Origin) -> Sampling {
        self.picture(origin).steps.drawing().sampling
    }

    /// Counts its pictures, which are all made.
    pub(super) fn count(&self, by_kernels: bool) {
        for (number, field) in self.fields.iter().enumerate() {
            let mut reasons = Reasons::new();
            for (_, why) in self.by_cpu.iter().filter(|(of, _)| *of == number) {
                *reasons.entry(why).or_default() += 1;
            }
            let ns = if number == 0 { self.decoding_ns } else { 0 }; // of all fields
            let decoded = DecodedIn { ns, by_kernels };
            pictures_of(field).0.count_pictures(&reasons, decoded);
        }
    }

    pub(super) fn is_in_chunks(&self) -> bool {
        self.waiting().is_none_or(Waiting::is_empty)
    }
}

pub(super) fn works<'a>(jobs: &'a VecDeque<Job>, origins: &[Origin]) -> Vec<Work<'a>> {
    let works = origins.iter().map(|origin| jobs[origin.0].work(*origin));
    works.collect()
}

fn pictures_of(rows: &EncodedRows) -> (&Scattered, &[PictureRow]) {
    match rows.storage.scattered().map(|rows| (rows, rows.list())) {
        Some((rows, RowList::Pictures(pictures))) => (rows, pictures),
        _ => unreachable!("rows that are handed over have pictures"),
    }
}
