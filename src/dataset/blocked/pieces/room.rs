//! Which pieces have room: those of a line in the order in which they are needed, and one sample beyond the bound.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Gone, Piece, Pieces, Stage, Turn};
use crate::sync::{Instant, planted};

/// Passes that follow each other, so that each waits for those before only.
pub(super) struct Line {
    /// Its part of the room is 1 of so many.
    pub(super) share: u64,
    pub(super) held_bytes: u128,
    pub(super) waiting: BTreeMap<Turn, u64>,
}

impl<F: Clone> Pieces<F> {
    /// What was fetched has been dropped.
    pub(in crate::dataset::blocked) fn dropped(&mut self, gone: &Gone<F>) {
        self.leaving_bytes -= gone.bytes;
        self.held_bytes -= gone.bytes;
    }

    /// Whether the line of a pass would have room, if others held none.
    pub(super) fn waits_for_others(&self, pass: u32, max_bytes: usize) -> bool {
        if self.leaving_bytes > 0 {
            return false; // there may be some at once
        }
        let number = self.passes.get(&pass).map_or(0, |course| course.line);
        let Some(line) = self.lines.get(&number) else {
            return true;
        };
        let Some((_, first)) = line.waiting.first_key_value() else {
            return false; // it is given room at this moment
        };
        let (of_line, _) = self.takes(*first, number);
        line.held_bytes == 0 || line.held_bytes + of_line <= line.quota(max_bytes)
    }

    /// What a piece takes of a line's room, if it is given to a pass of the line, and of all.
    fn takes(&self, piece: u64, line: u64) -> (u128, u128) {
        let Some(piece) = self.pieces.get(&piece) else {
            return (0, 0);
        };
        let bytes = piece.bytes as u128;
        let mut needs = piece.needs.iter().filter(|need| need.has_room);
        let has_room = needs.clone().next().is_some();
        let has_line = needs.any(|need| need.line == line);
        let of = |has| if has { 0 } else { bytes };
        (of(has_line), of(has_room))
    }

    /// Gives room to what waits for it, in order. Returns what is to be fetched, and how long that may take.
    pub(in crate::dataset::blocked) fn give_room(
        &mut self,
        max_bytes: usize,
    ) -> Vec<(u64, Option<Duration>)> {
        let mut given = Vec::new();
        let lines: Vec<u64> = self.lines.keys().copied().collect();
        for line in lines {
            while let Some((turn, number)) = self.next_with_room(line, max_bytes) {
                let (of_line, of_all) = self.takes(number, line);
                if let Some(line) = self.lines.get_mut(&line) {
                    line.waiting.remove(&turn);
                    line.held_bytes += of_line;
                }
                let Some(piece) = self.pieces.get_mut(&number) else {
                    continue; // cannot be
                };
                let has_room = piece.needs.iter().any(|need| need.has_room);
                let mut needs = piece.needs.iter_mut();
                if let Some(need) = needs.find(|need| need.turn == turn) {
                    need.has_room = true;
                }
                self.held_bytes += of_all;
                if !has_room {
                    self.open += 1;
                    given.push((number, piece.timeout));
                }
            }
        }
        self.most_bytes = self.most_bytes.max(self.held_bytes);
        given
    }

    /// Whether there is room for what the line of a pass waits for.
    pub(in crate::dataset::blocked) fn has_room(&self, pass: u32, max_bytes: usize) -> bool {
        let line = self.passes.get(&pass).map(|course| course.line);
        line.is_some_and(|line| self.next_with_room(line, max_bytes).is_some())
    }

    /// The piece of a line that comes next, if it has room now.
    fn next_with_room(&self, number: u64, max_bytes: usize) -> Option<(Turn, u64)> {
        let line = self.lines.get(&number)?;
        let (turn, piece) = match planted("room is given in the wrong order") {
            true => line.waiting.last_key_value(),
            false => line.waiting.first_key_value(),
        }?;
        let (of_line, of_all) = self.takes(*piece, number);
        let fits = line.held_bytes + of_line <= line.quota(max_bytes)
            && self.held_bytes + of_all <= max_bytes as u128;
        let is_alone = self.held_bytes == 0;
        (fits || is_alone).then_some((*turn, *piece))
    }

    /// Room for one sample that is fetched alone: among the others if there is some, or else beyond them, one at a time. `None`: not now.
    pub(in crate::dataset::blocked) fn make_alone(
        &mut self,
        index: u64,
        (block, bytes): (u64, usize),
        max_bytes: usize,
        (now, timeout): (Instant, Option<Duration>),
    ) -> Option<u64> {
        let has_room = self.held_bytes + bytes as u128 <= max_bytes as u128;
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        // (What is being dropped may be the one that was beyond.)
        let is_free =
            self.leaving_bytes == 0 && self.beyond.is_none_or(|(_, until)| is_over(until));
        if !has_room && !is_free && !planted("any number of samples is beyond the bound") {
            return None;
        }
        self.made += 1;
        let number = self.made;
        if !has_room {
            // Half, as for what is in flight: what waits behind it needs time of its own.
            let until = timeout.and_then(|timeout| now.checked_add(timeout / 2));
            self.beyond = Some((number, until));
        }
        self.held_bytes += bytes as u128;
        self.most_bytes = self.most_bytes.max(self.held_bytes);
        self.open += 1;
        self.singles += 1;
        let piece = Piece {
            block,
            samples: index..index + 1,
            bytes,
            is_alone: true,
            is_single: false,
            timeout,
            stage: Stage::Waits,
            needs: Vec::new(),
        };
        self.pieces.insert(number, piece);
        Some(number)
    }

    /// Until when no other sample may be beyond the bound.
    pub(in crate::dataset::blocked) fn beyond_until(&self) -> Option<Instant> {
        self.beyond.and_then(|(_, until)| until)
    }

    /// A piece has no room any more: what there is of it is dropped. If it is needed, it is fetched again when its turn comes.
    pub(super) fn vacate(&mut self, number: u64, gone: &mut Gone<F>) {
        let Some(piece) = self.pieces.get_mut(&number) else {
            return;
        };
        let bytes = piece.bytes as u128;
        self.open -= 1;
        match std::mem::replace(&mut piece.stage, Stage::Waits) {
            Stage::Waits => self.held_bytes -= bytes,
            Stage::Asked(request) => {
                self.held_bytes -= bytes;
                self.cancelled += 1;
                gone.requests.push(request);
            }
            Stage::Here(request, fetched) => {
                self.leaving_bytes += bytes;
                gone.bytes += bytes;
                gone.requests.push(request);
                gone.fetched.push(fetched);
            }
        }
    }
}

impl Line {
    fn quota(&self, max_bytes: usize) -> u128 {
        max_bytes as u128 / u128::from(self.share)
    }
}
