//! Which pieces of blocks are needed, which have room, and which are there: the state that all threads share, under one lock. Nothing of the
//! program's is called, or dropped, while it is held.
//!
//! A *piece* is some samples of one block that are fetched together: what an [`Opening`] says, or one sample that is in none. Passes
//! *need* pieces; those that need the same one share it. A piece is forgotten when no pass needs it any more: the samples that were
//! announced of it were all taken, or their batches are settled, or the passes are over.
//!
//! # Why no worker waits for ever
//!
//! Room is given to the pieces of a *line* (passes that follow each other, in one session) in the order in which they are needed. Take the
//! first position of the line whose sample was neither taken nor settled. A piece that has room, and comes before this position's
//! piece in that order, has another sample behind the position, or it would have been forgotten. (A piece that another pass has room
//! for does not take the line's before its turn; if it is let go by the other before that, it is fetched again.) So both are open there, and
//! so many pieces as are open at once have room together (`Blocked::check_room`). Therefore that sample's piece has room, and the line goes on.
//! Positions that are never taken, for their batch has failed, are settled when the program takes the error; the data set is told of that.
//!
//! Other lines may hold the room. A worker does not wait for these: it fetches its sample alone, beyond `max_bytes` if need be, one at a
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use crate::dataset::Pass;
use crate::sampler::{Again, Opening, Openings};
use crate::sync::{Instant, planted};

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
    /// How many of its samples the pass has yet to take.
    left: u64,
    /// From this position on, it needs nothing of the piece.
    until: u64,
    marks: Vec<Mark>,
}

/// What a pass has to do with a sample of a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Unknown,
    Announced,
    Taken,
}

/// A pass over the data.
struct Course {
    id: u64,
    line: u64,
    timeout: Option<Duration>,
    openings: Left,
    /// When their samples come in the next epoch, if that is known.
    again: Option<Again>,
    /// The next one of them, and how many bytes it has.
    next: Option<(Opening, usize)>,
    /// The pieces that it needs, by their first samples.
    needs: BTreeMap<u64, u64>,
    /// Below this position, samples have been announced.
    reached: u64,
    /// Below this one, they are done with.
    done: u64,
    /// Pieces that were opened, and begin behind what was announced.
    ahead: BTreeSet<Turn>,
}

/// The openings of a pass that are left.
enum Left {
    Some(Openings),
    /// A thread asks for the next one, without the lock.
    Asked,
    None,
}

/// What there is to do before a pass's samples are announced.
pub(super) enum Step {
    /// Ask a pass for its next opening, and [put them back](Pieces::put_back).
    Read(u32, Openings),
    /// Another thread is at it.
    Wait,
    Done,
}

/// What a pass opens next.
enum Next {
    /// With how many bytes it has.
    Opening(Opening, usize),
    /// They are to be asked for it.
    Read(Openings),
    /// Another thread is at it.
    Asked,
}

/// Passes that follow each other, so that each waits for those before only.
struct Line {
    /// Its part of the room is 1 of so many.
    share: u64,
    held_bytes: u128,
    waiting: BTreeMap<Turn, u64>,
}

/// What a `get` finds.
pub(super) enum Found<F> {
    /// `again`: it was got before.
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
    /// It was announced, and not got before.
    counts: bool,
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
    /// A pass begins. `None`: it has no openings.
    pub(super) fn begin(&mut self, pass: Pass, openings: Option<Openings>) {
        let line = self.lines.entry(pass.line).or_insert(Line {
            share: 1,
            held_bytes: 0,
            waiting: BTreeMap::new(),
        });
        line.share = pass.share.max(1);
        self.passes.entry(pass.short_id()).or_insert(Course {
            id: pass.id(),
            line: pass.line,
            timeout: pass.timeout,
            again: openings.as_ref().and_then(Openings::again),
            openings: openings.map_or(Left::None, Left::Some),
            next: None,
            needs: BTreeMap::new(),
            reached: 0,
            done: 0,
            ahead: BTreeSet::new(),
        });
    }

    /// Samples of a pass are announced up to a position, and those before another are done with.
    pub(super) fn comes_to(&mut self, pass: Pass, gone: &mut Gone<F>) {
        let own = pass.short_id();
        if !self.passes.contains_key(&own) {
            self.begin(pass, None);
        }
        let Some(course) = self.passes.get_mut(&own) else {
            return; // cannot be
        };
        course.reached = course.reached.max(pass.reached);
        let is_reached = |(_, first, _): &Turn| *first < course.reached;
        while course.ahead.first().is_some_and(is_reached) {
            course.ahead.pop_first();
        }
        if pass.done <= course.done || planted("what is done with keeps its room") {
            return;
        }
        course.done = pass.done;
        let needs: Vec<u64> = course.needs.values().copied().collect();
        for number in needs {
            let needs = self.pieces.get(&number).map(|piece| &piece.needs);
            let mut needs = needs.into_iter().flatten();
            if needs.any(|need| need.pass == own && need.until <= pass.done) {
                self.leave(number, own, gone);
            }
        }
    }

    /// Opens what a pass needs of what is announced, and `ahead` pieces of its line beyond that. `hangs`: whether a request does.
    pub(super) fn open(&mut self, pass: u32, ahead: usize, hangs: &dyn Fn(u64) -> bool) -> Step {
        loop {
            let Some(course) = self.passes.get(&pass) else {
                return Step::Done; // it is over
            };
            // All of a pass comes before what is announced of a later one, though the call that announces its last samples may come after this
            // one. Otherwise the later pass would take the room.
            let (line, id, is_announced) = (course.line, course.id, course.reached > 0);
            let first = self.first_with_openings(line).filter(|first| {
                let first = self.passes.get(first);
                is_announced && first.is_some_and(|first| first.id < id)
            });
            if let Some(first) = first.filter(|_| !planted("a later pass takes the room")) {
                match self.next_opening(first) {
                    Next::Opening(opening, bytes) => self.enter(first, opening, bytes, hangs),
                    Next::Read(openings) => return Step::Read(first, openings),
                    Next::Asked => return Step::Wait,
                }
                continue;
            }
            let Some(course) = self.passes.get_mut(&pass) else {
                return Step::Done; // cannot be
            };
            match course.next.take() {
                Some((opening, bytes)) if opening.first < course.reached => {
                    self.enter(pass, opening, bytes, hangs);
                    continue;
                }
                next => course.next = next,
            }
            if course.next.is_none() {
                match std::mem::replace(&mut course.openings, Left::Asked) {
                    Left::Some(openings) => return Step::Read(pass, openings),
                    // What is announced may be among what another thread opens.
                    Left::Asked => return Step::Wait,
                    Left::None => course.openings = Left::None,
                }
            }
            let of_line = || self.passes.values().filter(|course| course.line == line);
            if of_line().map(|course| course.ahead.len()).sum::<usize>() >= ahead {
                return Step::Done;
            }
            let Some(first) = self.first_with_openings(line) else {
                return Step::Done;
            };
            match self.next_opening(first) {
                Next::Opening(opening, bytes) => self.enter(first, opening, bytes, hangs),
                Next::Read(openings) => return Step::Read(first, openings),
                Next::Asked => return Step::Done,
            }
        }
    }

    /// The first pass of a line that has openings left.
    fn first_with_openings(&self, line: u64) -> Option<u32> {
        let passes = self.passes.iter().filter(|(_, course)| {
            let is_at_end = course.next.is_none() && matches!(course.openings, Left::None);
            course.line == line && !is_at_end
        });
        let (first, _) = passes.min_by_key(|(_, course)| course.id)?;
        Some(*first)
    }

    /// Takes what a pass opens next, which has openings left.
    fn next_opening(&mut self, pass: u32) -> Next {
        let Some(course) = self.passes.get_mut(&pass) else {
            return Next::Asked; // cannot be
        };
        if let Some((opening, bytes)) = course.next.take() {
            return Next::Opening(opening, bytes);
        }
        match std::mem::replace(&mut course.openings, Left::Asked) {
            Left::Some(openings) => Next::Read(openings),
            Left::Asked | Left::None => Next::Asked,
        }
    }

    /// Puts openings back, with the one that was taken, and how many bytes it has. `None`: there are no more.
    pub(super) fn put_back(
        &mut self,
        pass: u32,
        openings: Option<Openings>,
        next: Option<(Opening, usize)>,
        gone: &mut Gone<F>,
    ) {
        match self.passes.get_mut(&pass) {
            Some(course) => {
                course.openings = openings.map_or(Left::None, Left::Some);
                course.next = next;
            }
            None => gone.openings.extend(openings), // it is over
        }
    }

    fn enter(&mut self, pass: u32, opening: Opening, bytes: usize, hangs: &dyn Fn(u64) -> bool) {
        let samples = (opening.samples.start, opening.samples.end);
        let shared = self.of_samples.get(&samples).copied();
        // What has failed, or hangs, is fetched anew for another pass.
        let shared = shared.filter(|piece| match self.pieces.get(piece) {
            Some(piece) => match &piece.stage {
                Stage::Waits => true,
                Stage::Asked(request) => !hangs(*request),
                Stage::Here(_, fetched) => (self.is_good)(fetched),
            },
            None => false,
        });
        self.need(pass, opening, bytes, shared, Mark::Unknown);
    }

    /// A pass needs a piece: one that there is, or a new one.
    fn need(&mut self, pass: u32, opening: Opening, bytes: usize, shared: Option<u64>, mark: Mark) {
        let Some(course) = self.passes.get_mut(&pass) else {
            return;
        };
        if course.needs.contains_key(&opening.samples.start) {
            return; // openings that overlap
        }
        self.made += 1;
        let Opening {
            block,
            samples,
            first,
            until,
            uses,
        } = opening;
        let turn = (course.id, first, self.made);
        let count = usize::try_from(samples.end - samples.start).unwrap_or(usize::MAX);
        let need = Need {
            pass,
            line: course.line,
            turn,
            has_room: false,
            left: uses,
            until,
            marks: vec![mark; count],
        };
        if first >= course.reached {
            course.ahead.insert(turn);
        }
        let number = shared.unwrap_or(self.made);
        course.needs.insert(samples.start, number);
        let piece = self.pieces.entry(number).or_insert_with(|| Piece {
            block,
            samples: samples.clone(),
            bytes,
            is_alone: false,
            is_single: mark == Mark::Announced,
            timeout: course.timeout,
            stage: Stage::Waits,
            needs: Vec::new(),
        });
        // Also if it is there for another pass, whose turn came before: that one may be over soon.
        if let Some(line) = self.lines.get_mut(&need.line) {
            line.waiting.insert(turn, number);
        }
        piece.needs.push(need);
        if mark == Mark::Unknown {
            self.of_samples.insert((samples.start, samples.end), number);
        }
    }

    /// Notes that a sample is announced. `Err`: it is in no piece of the pass. One in none is to be [added](Pieces::add_single).
    pub(super) fn announce(&mut self, index: u64, pass: u32) -> Result<(), ()> {
        let piece = self.piece_of(index, pass).ok_or(())?;
        let piece = self.pieces.get_mut(&piece).ok_or(())?;
        let mark = piece.mark(index, pass).ok_or(())?;
        // (Once: a filler row repeats a sample.)
        if *mark == Mark::Unknown {
            *mark = Mark::Announced;
        }
        Ok(())
    }

    /// A sample that is announced, and in no piece, is one.
    pub(super) fn add_single(&mut self, index: u64, block: u64, bytes: usize, pass: Pass) {
        let reached = pass.reached;
        let opening = Opening {
            block,
            samples: index..index + 1,
            first: reached.saturating_sub(1),
            until: reached,
            uses: 1,
        };
        self.singles += 1;
        self.need(pass.short_id(), opening, bytes, None, Mark::Announced);
    }

    /// The piece that has a sample for a pass.
    fn piece_of(&self, index: u64, pass: u32) -> Option<u64> {
        let needs = &self.passes.get(&pass)?.needs;
        let (_, piece) = needs.range(..=index).next_back()?;
        let samples = &self.pieces.get(piece)?.samples;
        samples.contains(&index).then_some(*piece)
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
        let course = self.passes.get(&pass);
        let need = course.and_then(|course| course.needs.range(..=index).next_back());
        let number = need.map_or(0, |(_, number)| *number);
        let piece = self.pieces.get_mut(&number);
        let Some(piece) = piece.filter(|piece| piece.samples.contains(&index)) else {
            // One that waits because it is tried again does not keep the piece: the last of those that count takes it away.
            let is_left = |used: Use| {
                let is_given_up =
                    planted("a sample that is tried again is given up with its block");
                used.counts || !self.passes.contains_key(&pass) || is_given_up
            };
            return match used.is_some_and(is_left) {
                true => Found::Gone,
                false => Found::Alone(None),
            };
        };
        if !matches!(piece.stage, Stage::Waits) {
            return piece.found(number, index, pass, used);
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
            Some(piece) => piece.found(number, index, pass, used),
            None => Found::Alone(None), // cannot be
        }
    }

    /// What was fetched has been dropped.
    pub(super) fn dropped(&mut self, gone: &Gone<F>) {
        self.leaving_bytes -= gone.bytes;
        self.held_bytes -= gone.bytes;
    }

    /// Whether the line of a pass would have room, if others held none.
    fn waits_for_others(&self, pass: u32, max_bytes: usize) -> bool {
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
    pub(super) fn give_room(&mut self, max_bytes: usize) -> Vec<(u64, Option<Duration>)> {
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
    pub(super) fn make_alone(
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
    pub(super) fn beyond_until(&self) -> Option<Instant> {
        self.beyond.and_then(|(_, until)| until)
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
                uses: need.left,
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
        if !used.counts {
            return;
        }
        let Some(piece) = self.pieces.get_mut(&used.piece) else {
            return;
        };
        let mut needs = piece.needs.iter_mut();
        let Some(need) = needs.find(|need| need.pass == used.pass) else {
            return;
        };
        need.left -= 1;
        if need.left == 0 {
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
            gone.openings.push(openings);
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

    /// A piece has no room any more: what there is of it is dropped. If it is needed, it is fetched again when its turn comes.
    fn vacate(&mut self, number: u64, gone: &mut Gone<F>) {
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
    /// What a `get` finds, which takes its sample if it was announced.
    fn found(&mut self, number: u64, index: u64, pass: u32, used: Option<Use>) -> Found<F> {
        // (One that was not announced takes another's place here, and comes in its own place later.)
        let mut mark = Mark::Unknown;
        if let Some(of_sample) = self.mark(index, pass) {
            mark = *of_sample;
            if mark == Mark::Announced {
                *of_sample = Mark::Taken;
            }
        }
        let again = mark == Mark::Taken && used.is_none();
        let used = Use {
            piece: number,
            pass,
            counts: mark == Mark::Announced || used.is_some_and(|used| used.counts),
        };
        match &self.stage {
            Stage::Here(_, fetched) => Found::Here {
                used,
                fetched: fetched.clone(),
                again,
            },
            Stage::Asked(request) => Found::Asked(used, *request),
            Stage::Waits => Found::Alone(Some(used)),
        }
    }
}

impl<F> Piece<F> {
    /// What a pass has to do with a sample.
    fn mark(&mut self, index: u64, pass: u32) -> Option<&mut Mark> {
        let at = usize::try_from(index.checked_sub(self.samples.start)?).ok()?;
        let mut needs = self.needs.iter_mut();
        needs.find(|need| need.pass == pass)?.marks.get_mut(at)
    }
}

impl Line {
    fn quota(&self, max_bytes: usize) -> u128 {
        max_bytes as u128 / u128::from(self.share)
    }
}
