//! What passes open: in their orders, what is announced first, and then further ahead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::room::Line;
use super::{Gone, Need, Piece, Pieces, Stage, Turn};
use crate::dataset::Pass;
use crate::sampler::{Again, Opening, Openings};
use crate::sync::{Mutex, planted};

/// A pass over the data.
pub(super) struct Course {
    pub(super) id: u64,
    pub(super) line: u64,
    pub(super) timeout: Option<Duration>,
    pub(super) openings: Left,
    /// When their samples come in the next epoch, if that is known.
    pub(super) again: Option<Again>,
    /// The next one of them, and how many bytes it has.
    pub(super) next: Option<(Opening, usize)>,
    /// The pieces that it needs, by their first samples.
    pub(super) needs: BTreeMap<u64, u64>,
    /// From which positions on it needs none of these, in order.
    pub(super) ends: BTreeSet<(u64, u64)>,
    /// Below this position, samples have been announced.
    pub(super) reached: u64,
    /// Below this one, they are done with.
    pub(super) done: u64,
    /// Pieces that were opened, and begin behind what was announced.
    pub(super) ahead: BTreeSet<Turn>,
}

/// The openings of a pass that are left.
pub(super) enum Left {
    /// (In a lock, which nothing ever waits for: what reads the pieces beside others must be `Sync`, and an iterator need not be.)
    Some(Box<Mutex<Openings>>),
    /// A thread asks for the next one, without the lock.
    Asked,
    None,
}

impl Course {
    /// Whether it has an opening that begins before a position, or may have: it is not known yet.
    fn opens_before(&self, position: u64) -> bool {
        match (&self.next, &self.openings) {
            (Some((next, _)), _) => next.first < position,
            (None, Left::None) => false,
            (None, Left::Some(_) | Left::Asked) => true,
        }
    }
}

impl Left {
    fn of(openings: Option<Openings>) -> Left {
        openings.map_or(Left::None, |openings| {
            Left::Some(Box::new(Mutex::new(openings)))
        })
    }
}

/// What there is to do before a pass's samples are announced.
pub(in crate::dataset::blocked) enum Step {
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

impl<F: Clone> Pieces<F> {
    /// A pass begins. `None`: it has no openings.
    pub(in crate::dataset::blocked) fn begin(&mut self, pass: Pass, openings: Option<Openings>) {
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
            openings: Left::of(openings),
            next: None,
            needs: BTreeMap::new(),
            ends: BTreeSet::new(),
            reached: 0,
            done: 0,
            ahead: BTreeSet::new(),
        });
    }

    /// Whether [`comes_to`](Pieces::comes_to) would change anything. Mostly, it would not: pieces begin and end every few hundred samples.
    pub(in crate::dataset::blocked) fn is_news(&self, pass: &Pass, max_bytes: usize) -> bool {
        let Some(course) = self.passes.get(&pass.short_id()) else {
            return true;
        };
        let ends = course.ends.first();
        let ahead = course.ahead.first();
        course.reached == 0
            || course.opens_before(pass.reached)
            || ends.is_some_and(|(until, _)| *until <= pass.done)
            || ahead.is_some_and(|(_, first, _)| *first < pass.reached)
            || self.has_room(pass.short_id(), max_bytes)
    }

    /// Samples of a pass are announced up to a position, and those before another are done with. Returns whether there may be more to open: its
    /// samples are not to be got before that, also where another thread is at it.
    pub(in crate::dataset::blocked) fn comes_to(&mut self, pass: Pass, gone: &mut Gone<F>) -> bool {
        let own = pass.short_id();
        if !self.passes.contains_key(&own) {
            self.begin(pass, None);
        }
        let Some(course) = self.passes.get_mut(&own) else {
            return false; // cannot be
        };
        let mut goes_ahead = pass.reached > course.reached;
        course.reached = course.reached.max(pass.reached);
        goes_ahead |= course.opens_before(course.reached);
        let is_reached = |(_, first, _): &Turn| *first < course.reached;
        while course.ahead.first().is_some_and(is_reached) {
            course.ahead.pop_first();
        }
        course.done = course.done.max(pass.done);
        let done = course.done;
        while let Some(course) = self.passes.get_mut(&own)
            && let Some((until, number)) = course.ends.first().copied()
            && until <= done
            && !planted("what is done with keeps its room")
        {
            course.ends.pop_first();
            self.leave(number, own, gone);
        }
        goes_ahead
    }

    /// Opens what a pass needs of what is announced, and `ahead` pieces of its line beyond that. `hangs`: whether a request does.
    pub(in crate::dataset::blocked) fn open(
        &mut self,
        pass: u32,
        ahead: usize,
        hangs: &dyn Fn(u64) -> bool,
    ) -> Step {
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
                    Left::Some(openings) => return Step::Read(pass, openings.into_inner()),
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
            Left::Some(openings) => Next::Read(openings.into_inner()),
            Left::Asked | Left::None => Next::Asked,
        }
    }

    /// Puts openings back, with the one that was taken, and how many bytes it has. `None`: there are no more.
    pub(in crate::dataset::blocked) fn put_back(
        &mut self,
        pass: u32,
        openings: Option<Openings>,
        next: Option<(Opening, usize)>,
        gone: &mut Gone<F>,
    ) {
        match self.passes.get_mut(&pass) {
            Some(course) => {
                course.openings = Left::of(openings);
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
        self.need(pass, opening, bytes, shared, false);
    }

    /// A pass needs a piece: one that there is, or a new one.
    fn need(
        &mut self,
        pass: u32,
        opening: Opening,
        bytes: usize,
        shared: Option<u64>,
        is_single: bool,
    ) {
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
        let need = Need {
            pass,
            line: course.line,
            turn,
            has_room: false,
            uses,
            until,
            failed: BTreeSet::new(),
        };
        if first >= course.reached {
            course.ahead.insert(turn);
        }
        let number = shared.unwrap_or(self.made);
        course.needs.insert(samples.start, number);
        course.ends.insert((until, number));
        let piece = self.pieces.entry(number).or_insert_with(|| Piece {
            block,
            samples: samples.clone(),
            bytes,
            is_alone: false,
            is_single,
            timeout: course.timeout,
            stage: Stage::Waits,
            needs: Vec::new(),
        });
        // Also if it is there for another pass, whose turn came before: that one may be over soon.
        if let Some(line) = self.lines.get_mut(&need.line) {
            line.waiting.insert(turn, number);
        }
        piece.needs.push(need);
        if !is_single {
            self.of_samples.insert((samples.start, samples.end), number);
        }
    }

    /// The announced samples that are in no piece of the pass: they are to be [added](Pieces::add_single).
    pub(in crate::dataset::blocked) fn without_piece(
        &self,
        indices: &[u64],
        pass: u32,
    ) -> Vec<u64> {
        let is_without = |index: &u64| self.piece_of(*index, pass).is_none();
        indices.iter().copied().filter(is_without).collect()
    }

    /// A sample that is announced, and in no piece, is one.
    pub(in crate::dataset::blocked) fn add_single(
        &mut self,
        index: u64,
        block: u64,
        bytes: usize,
        pass: Pass,
    ) {
        let reached = pass.reached;
        let opening = Opening {
            block,
            samples: index..index + 1,
            first: reached.saturating_sub(1),
            until: reached,
            uses: 1,
        };
        self.singles += 1;
        self.need(pass.short_id(), opening, bytes, None, true);
    }
}
