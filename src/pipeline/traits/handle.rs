//! An epoch of a session, as its consumer holds it.

use super::Reached;
use crate::meter::Meter;
use crate::pipeline::lookahead::Announcer;
use crate::pipeline::plan::delivered::Progress;
use crate::pipeline::plan::partition::Start;
use crate::pipeline::plan::shard::DeviceShard;
use crate::sync::{Arc, Condvar, Mutex};

/// An epoch of a session, as its consumer holds it.
#[derive(Clone)]
pub(crate) struct EpochHandle {
    pub(crate) session: u64,
    pub(crate) epoch_entry: u64,
    /// Which of this rank's batches it has, and for which device.
    pub(crate) share: DeviceShard,
    pub(crate) start: Start,
    pub(crate) meter: Arc<Meter>,
    /// Which batches were given out.
    pub(crate) progress: Arc<Progress>,
    /// Where its stream stands behind what was given out; `None` for samples that have an index.
    pub(crate) reached: Option<Arc<Mutex<Reached>>>,
    /// The session's consumer sleeps here.
    pub(crate) task_ready: Arc<Condvar>,
    /// Its session's, if the data set wants to know what comes.
    pub(crate) announcer: Option<Arc<Announcer>>,
    /// Other epochs follow it, and share its slabs.
    pub(crate) is_followed: bool,
}

/// How a session begins.
#[derive(Debug, Clone)]
pub(crate) struct Beginning {
    pub(crate) start: Start,
    /// That of the epoch's stream, if it is resumed by one.
    pub(crate) state: Option<Vec<u8>>,
    /// Other epochs will follow.
    pub(crate) is_followed: bool,
    /// Which of this rank's batches it has, and for which device.
    pub(crate) share: DeviceShard,
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
            share: DeviceShard::WHOLE,
            is_apart: false,
        }
    }
}

impl EpochHandle {
    /// The handle of an epoch that cannot be loaded: it has no session.
    pub(crate) fn without_session(
        start: Start,
        share: DeviceShard,
        reached: Option<Arc<Mutex<Reached>>>,
        any_order: bool,
    ) -> EpochHandle {
        EpochHandle {
            session: 0, // no session has this number
            epoch_entry: 0,
            share,
            start,
            meter: Arc::default(),
            progress: Arc::new(Progress::new(start.given, any_order)),
            reached,
            task_ready: Arc::default(),
            announcer: None,
            is_followed: false,
        }
    }
}
