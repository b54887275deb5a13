//! An epoch of a line, as its consumer holds it.

use super::Reached;
use crate::meter::Meter;
use crate::pipeline::lookahead::Announcer;
use crate::pipeline::plan::delivered::Progress;
use crate::pipeline::plan::options::Portion;
use crate::pipeline::plan::partition::Start;
use crate::sync::{Arc, Condvar, Mutex};

/// An epoch of a line, as its consumer holds it.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) line: u64,
    pub(crate) segment: u64,
    /// Which of this rank's batches it has, and for which device.
    pub(crate) share: Portion,
    pub(crate) start: Start,
    pub(crate) meter: Arc<Meter>,
    /// Which batches were given out.
    pub(crate) progress: Arc<Progress>,
    /// Where its stream stands behind what was given out; `None` for samples that have an index.
    pub(crate) reached: Option<Arc<Mutex<Reached>>>,
    /// The line's consumer sleeps here.
    pub(crate) unit_ready: Arc<Condvar>,
    /// Its line's, if the data set wants to know what comes.
    pub(crate) announcer: Option<Arc<Announcer>>,
    /// Other epochs follow it, and share its slabs.
    pub(crate) is_followed: bool,
}

/// How a line begins.
#[derive(Debug, Clone)]
pub(crate) struct Beginning {
    pub(crate) start: Start,
    /// That of the epoch's stream, if it is resumed by one.
    pub(crate) state: Option<Vec<u8>>,
    /// Other epochs will follow.
    pub(crate) is_followed: bool,
    /// Which of this rank's batches it has, and for which device.
    pub(crate) share: Portion,
    /// It is no part of the run, and its times and batches are not counted.
    pub(crate) is_apart: bool,
}

impl Beginning {
    /// With all batches of this rank.
    pub(crate) fn whole(start: Start, state: Option<Vec<u8>>, is_followed: bool) -> Beginning {
        Beginning {
            start,
            state,
            is_followed,
            share: Portion::WHOLE,
            is_apart: false,
        }
    }
}

impl Seat {
    /// That of a line that nobody could load.
    pub(crate) fn without_line(
        start: Start,
        share: Portion,
        reached: Option<Arc<Mutex<Reached>>>,
        any_order: bool,
    ) -> Seat {
        Seat {
            line: 0, // no line has this number
            segment: 0,
            share,
            start,
            meter: Arc::default(),
            progress: Arc::new(Progress::new(start.given, any_order)),
            reached,
            unit_ready: Arc::default(),
            announcer: None,
            is_followed: false,
        }
    }
}
