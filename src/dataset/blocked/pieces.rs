//! Which pieces of blocks are needed, which have room, and which are there: the state that all threads share, under one lock, which those
//! that only look hold together. Nothing of the program's is called, or dropped, while it is held.
//!
//! A *piece* is some samples of one block that are fetched together: what an [`Opening`] says, or one sample that is in none. Passes
//! *need* pieces; those that need the same one share it. A piece is forgotten when no pass needs it any more: they are over, or all samples
//! before the position where the piece ends are *done with*, because they were loaded or their batches are settled. So there is nothing to count
//! for each sample, and a sample that is there is found by reading alone.
//!
//! # Why no worker waits for ever
//!
//! Room is given to the pieces of a *line* (passes that follow each other, in one session) in the order in which they are needed. Take the
//! first position of the line whose sample is not done with. (A worker says what it has loaded before it waits.) A piece that has room, and
//! comes before this position's piece in that order, has another sample behind the position, or it would have been forgotten. (A piece
//! that another pass has room for does not take the line's before its turn; if it is let go by the other before that, it is fetched again.) So both are open there, and
//! so many pieces as are open at once have room together (`Blocked::check_room`). Therefore that sample's piece has room, and the line goes on.
//! Positions that are never taken, for their batch has failed, are settled when the program takes the error; the data set is told of that.
//!
//! Other lines may hold the room. A worker does not wait for these: it fetches its sample alone, beyond `max_bytes` if need be, one at a
//! time.

mod opening;
mod room;
mod rows;

pub(super) use opening::Step;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use opening::{Course, Left};
use room::Line;

use crate::sampler::{Again, Opening, Openings};
use crate::sync::Instant;

/// A pass, in the order in which they began, and where in it: a position, and which of the pieces that begin there.
type Turn = (u64, u64, u64);

pub(super) struct Pieces<F> {
    made: u64,
    pieces: BTreeMap<u64, Piece<F>>,
    /// Those that passes may share, by their samples.
    of_samples: BTreeMap<(u64, u64), u64>,
    /// By the numbers that samples' generators have.
    passes: BTreeMap<u32, Course>,
    lines: BTreeMap<u64, Line>,
    /// What the pieces that have room take, with those that are being dropped.
    pub(super) held_bytes: u128,
    leaving_bytes: u128,
    pub(super) most_bytes: u128,
    /// The piece that is allowed beyond the bound, and until when no other is.
    beyond: Option<(u64, Option<Instant>)>,
    /// How many samples were fetched alone.
    pub(super) singles: u64,
    /// How many requests were given up.
    pub(super) cancelled: u64,
    /// How many pieces have room.
    pub(super) open: usize,
    /// Whether what was fetched is of use for another pass.
    is_good: fn(&F) -> bool,
}

struct Piece<F> {
    block: u64,
    samples: Range<u64>,
    bytes: usize,
    /// It is fetched for one `get`, and no pass needs it.
    is_alone: bool,
    /// It is one sample that was announced, and is in no opening.
    is_single: bool,
    timeout: Option<Duration>,
    stage: Stage<F>,
    needs: Vec<Need>,
}

enum Stage<F> {
    /// It has no request.
    Waits,
    /// It has a request of this number.
    Asked(u64),
    Here(u64, F),
}

/// That a pass needs a piece.
struct Need {
    pass: u32,
    line: u64,
    turn: Turn,
    /// It was its turn: what the piece takes is within the line's part of the room.
    has_room: bool,
    /// How many of its samples the pass takes.
    uses: u64,
    /// From this position on, it needs nothing of the piece.
    until: u64,
    /// The samples that got the error that it could not be fetched.
    failed: BTreeSet<u64>,
}

/// What a `get` finds.
pub(super) enum Found<F> {
    /// `again`: it could not be fetched, and the sample got that error before.
    Here { used: Use, fetched: F, again: bool },
    /// It is fetched by this request.
    Asked(Use, u64),
    /// Its piece has no room yet, and will.
    NoRoom,
    /// It has no piece, or one that waits for the room of other lines. `Some`: the pass counts on it.
    Alone(Option<Use>),
    /// It had one, and that is not needed any more: the pass is over, or the sample's batch has failed.
    Gone,
}

/// What is to be fetched.
pub(super) struct Wanted {
    pub(super) block: u64,
    pub(super) samples: Range<u64>,
    /// For whom, and what says when it is fetched again.
    pub(super) again: Option<(Again, Opening)>,
}

/// A sample of a piece that a `get` is at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    pub(super) piece: u64,
    pass: u32,
    /// The piece is this one sample.
    is_single: bool,
}

/// What is not needed any more: to be dropped, and forgotten, without the lock.
pub(super) struct Gone<F> {
    pub(super) requests: Vec<u64>,
    pub(super) fetched: Vec<F>,
    pub(super) openings: Vec<Openings>,
    /// What `fetched` takes, until it is [dropped](Pieces::dropped).
    bytes: u128,
}

impl<F> Default for Gone<F> {
    fn default() -> Gone<F> {
        Gone {
            requests: Vec::new(),
            fetched: Vec::new(),
            openings: Vec::new(),
            bytes: 0,
        }
    }
}

impl<F> Gone<F> {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.fetched.is_empty() && self.openings.is_empty()
    }
}

impl<F> Pieces<F> {
    pub(super) fn new(is_good: fn(&F) -> bool) -> Pieces<F> {
        Pieces {
            made: 0,
            pieces: BTreeMap::new(),
            of_samples: BTreeMap::new(),
            passes: BTreeMap::new(),
            lines: BTreeMap::new(),
            held_bytes: 0,
            leaving_bytes: 0,
            most_bytes: 0,
            beyond: None,
            singles: 0,
            cancelled: 0,
            open: 0,
            is_good,
        }
    }
}

impl<F: Clone> Pieces<F> {
    /// The piece that has a sample for a pass, and its number.
    fn piece_of(&self, index: u64, pass: u32) -> Option<(u64, &Piece<F>)> {
        self.piece_among(&self.passes.get(&pass)?.needs, index)
    }

    /// The same, of what a pass needs.
    fn piece_among(&self, needs: &BTreeMap<u64, u64>, index: u64) -> Option<(u64, &Piece<F>)> {
        let (_, number) = needs.range(..=index).next_back()?;
        let piece = self.pieces.get(number)?;
        piece.samples.contains(&index).then_some((*number, piece))
    }

    /// What was fetched of a sample's piece, if it is there, and there is nothing to note.
    pub(super) fn find_here(&self, index: u64, pass: u32) -> Option<F> {
        let (_, piece) = self.piece_of(index, pass)?;
        match &piece.stage {
            Stage::Here(_, fetched) if !piece.is_single && (self.is_good)(fetched) => {
                Some(fetched.clone())
            }
            _ => None,
        }
    }

    /// Finds what there is of a sample. `used`: as it was found before.
    pub(super) fn find(
        &mut self,
        index: u64,
        pass: u32,
        used: Option<Use>,
        max_bytes: usize,
    ) -> Found<F> {
        let pass = match pass {
            // It is not known for which. What was fetched is the same for each.
            0 => {
                let mut passes = self.passes.keys();
                let any = passes.find(|pass| self.piece_of(index, **pass).is_some());
                any.copied().unwrap_or(0)
            }
            pass => pass,
        };
        let number = self.piece_of(index, pass).map_or(0, |(number, _)| number);
        let is_good = self.is_good;
        let Some(piece) = self.pieces.get_mut(&number) else {
            // (One in the place of another does not keep a piece.)
            let is_left = |used: Use| used.is_single || !self.passes.contains_key(&pass);
            return match used.is_some_and(is_left) {
                true => Found::Gone,
                false => Found::Alone(None),
            };
        };
        if !matches!(piece.stage, Stage::Waits) {
            return piece.found(number, index, pass, used, is_good);
        }
        // One sample waits for no room in the line: there is some for one beyond the bound, in the end.
        if piece.is_single {
            self.singles -= 1; // it is made anew
            self.leave(number, pass, &mut Gone::default());
            return Found::Alone(None);
        }
        if !self.waits_for_others(pass, max_bytes) {
            return Found::NoRoom;
        }
        match self.pieces.get_mut(&number) {
            Some(piece) => piece.found(number, index, pass, used, is_good),
            None => Found::Alone(None), // cannot be
        }
    }

    /// A piece has a request of this number.
    pub(super) fn ask(&mut self, piece: u64, request: u64) {
        if let Some(piece) = self.pieces.get_mut(&piece) {
            piece.stage = Stage::Asked(request);
        }
    }

    /// What is to be fetched for a piece; `None`: it is not needed any more.
    pub(super) fn wanted(&self, piece: u64) -> Option<Wanted> {
        let piece = self.pieces.get(&piece)?;
        // (One sample in place of another says nothing of its block.)
        let needs = piece.needs.iter().filter(|_| !piece.is_single);
        let first = needs.min_by_key(|need| need.turn);
        let again = first.and_then(|need| {
            let again = self.passes.get(&need.pass)?.again.clone()?;
            let opening = Opening {
                block: piece.block,
                samples: piece.samples.clone(),
                first: need.turn.1,
                until: need.until,
                uses: need.uses,
            };
            Some((again, opening))
        });
        Some(Wanted {
            block: piece.block,
            samples: piece.samples.clone(),
            again,
        })
    }

    /// A piece was fetched. Gives it back if it is not needed any more.
    pub(super) fn fetched(&mut self, piece: u64, fetched: F) -> Option<F> {
        if let Some(piece) = self.pieces.get_mut(&piece)
            && let Stage::Asked(request) = piece.stage
        {
            piece.stage = Stage::Here(request, fetched);
            return None;
        }
        Some(fetched)
    }

    pub(super) fn knows(&self, pass: u32) -> bool {
        self.passes.contains_key(&pass)
    }

    /// How long a sample of a pass may take.
    pub(super) fn timeout(&self, pass: u32) -> Option<Duration> {
        self.passes.get(&pass)?.timeout
    }

    /// What was fetched alone.
    pub(super) fn alone(&self, piece: u64) -> Option<F> {
        match &self.pieces.get(&piece)?.stage {
            Stage::Here(_, fetched) => Some(fetched.clone()),
            Stage::Waits | Stage::Asked(_) => None,
        }
    }

    /// What a piece brought is to be fetched again. Gives how long that may take; `None`: that is under way.
    pub(super) fn again(&mut self, piece: u64, gone: &mut Gone<F>) -> Option<Option<Duration>> {
        let piece = self.pieces.get_mut(&piece)?;
        match std::mem::replace(&mut piece.stage, Stage::Waits) {
            Stage::Here(request, fetched) => {
                gone.requests.push(request);
                gone.fetched.push(fetched);
                Some(piece.timeout)
            }
            stage => {
                piece.stage = stage;
                None
            }
        }
    }

    /// A `get` is done with a sample.
    pub(super) fn used(&mut self, used: Use, gone: &mut Gone<F>) {
        if used.is_single {
            self.leave(used.piece, used.pass, gone);
        }
    }

    /// A pass is over.
    pub(super) fn end(&mut self, pass: u32, gone: &mut Gone<F>) {
        let Some(course) = self.passes.get(&pass) else {
            return;
        };
        let needs: Vec<u64> = course.needs.values().copied().collect();
        for piece in needs {
            self.leave(piece, pass, gone);
        }
        let Some(course) = self.passes.remove(&pass) else {
            return;
        };
        let line = course.line;
        if let Left::Some(openings) = course.openings {
            gone.openings.push(openings.into_inner());
        }
        if !self.passes.values().any(|course| course.line == line) {
            self.lines.remove(&line);
        }
    }

    /// Everything is over.
    pub(super) fn close(&mut self) -> Gone<F> {
        let mut gone = Gone::default();
        let passes: Vec<u32> = self.passes.keys().copied().collect();
        passes
            .into_iter()
            .for_each(|pass| self.end(pass, &mut gone));
        let left: Vec<u64> = self.pieces.keys().copied().collect();
        left.into_iter()
            .for_each(|piece| self.forget_alone(piece, &mut gone));
        gone
    }

    /// A pass needs a piece no longer.
    fn leave(&mut self, number: u64, pass: u32, gone: &mut Gone<F>) {
        let Some(piece) = self.pieces.get_mut(&number) else {
            return;
        };
        let at = piece.needs.iter().position(|need| need.pass == pass);
        let Some(need) = at.map(|at| piece.needs.swap_remove(at)) else {
            return;
        };
        if let Some(course) = self.passes.get_mut(&pass) {
            course.ahead.remove(&need.turn);
            course.ends.remove(&(need.until, number));
            let start = piece.samples.start;
            if course.needs.get(&start) == Some(&number) {
                course.needs.remove(&start);
            }
        }
        let mut with_room = piece.needs.iter().filter(|other| other.has_room);
        let has_room = with_room.clone().next().is_some();
        let has_line = with_room.any(|other| other.line == need.line);
        let is_needed = !piece.needs.is_empty();
        if let Some(line) = self.lines.get_mut(&need.line) {
            line.waiting.remove(&need.turn);
            if need.has_room && !has_line {
                line.held_bytes -= piece.bytes as u128;
            }
        }
        if need.has_room && !has_room {
            self.vacate(number, gone);
        }
        if !is_needed {
            self.forget(number);
        }
    }

    /// Nothing needs a piece any more, which has no room.
    fn forget(&mut self, number: u64) {
        let Some(piece) = self.pieces.remove(&number) else {
            return;
        };
        let samples = (piece.samples.start, piece.samples.end);
        if self.of_samples.get(&samples) == Some(&number) {
            self.of_samples.remove(&samples);
        }
        if self.beyond.is_some_and(|(beyond, _)| beyond == number) {
            self.beyond = None;
        }
    }

    /// What was fetched alone is not needed any more.
    pub(super) fn forget_alone(&mut self, piece: u64, gone: &mut Gone<F>) {
        if self.pieces.get(&piece).is_some_and(|piece| piece.is_alone) {
            self.vacate(piece, gone);
            self.forget(piece);
        }
    }
}

impl<F: Clone> Piece<F> {
    /// What a `get` finds.
    fn found(
        &mut self,
        number: u64,
        index: u64,
        pass: u32,
        used: Option<Use>,
        is_good: fn(&F) -> bool,
    ) -> Found<F> {
        let is_again = used.is_none();
        let used = Use {
            piece: number,
            pass,
            is_single: self.is_single,
        };
        match &self.stage {
            Stage::Here(_, fetched) => {
                let mut again = false;
                if !is_good(fetched)
                    && let Some(need) = self.needs.iter_mut().find(|need| need.pass == pass)
                {
                    again = !need.failed.insert(index) && is_again;
                }
                Found::Here {
                    used,
                    fetched: fetched.clone(),
                    again,
                }
            }
            Stage::Asked(request) => Found::Asked(used, *request),
            Stage::Waits => Found::Alone(Some(used)),
        }
    }
}
