//! What is asked of an iterable whose items are pulled.

use super::{Build, Factory};
use crate::error::{Error, Result, drop_each};
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::plan::partition::Place;
use crate::sync::Arc;
use crate::tensor::Offload;

/// Where an iterable's epoch begins.
pub(crate) struct StreamStart {
    pub(crate) epoch: u64,
    /// How many items this rank was given before, in the same epoch.
    pub(crate) items: u64,
    /// Where the iterable stood then, if it could say so.
    pub(crate) state: Option<Vec<u8>>,
}

/// The iterable of an epoch, with its type erased.
pub(crate) trait Pull<B>: Send {
    /// Pulls the items of the task at a place; fewer if the iterable ends.
    ///
    /// An error ends the epoch, and it is not pulled again.
    fn pull(
        &mut self,
        context: &Arc<EpochContext>,
        place: Place,
        offload: Offload,
    ) -> Result<Pulled<B>>;
}

/// What was pulled for a task.
pub(crate) enum Pulled<B> {
    Items {
        build: Arc<dyn Build<B>>,
        own: Box<OwnItems<B>>,
        /// The iterable has ended.
        is_last: bool,
    },
    /// There are not enough items for now. The task is this error, and the one behind it has the items that it would have had.
    NotNow(Error),
    /// The iterable had ended before.
    Nothing,
}

/// The items that were pulled for a task.
pub(crate) struct OwnItems<B> {
    /// Makes the task again, if a sample is left out.
    pub(crate) factory: Arc<dyn Factory<B>>,
    /// With its real number of rows, which the plan does not know.
    pub(crate) place: Place,
    pub(crate) reached: Reached,
    /// They are kept when they are loaded, and can be loaded again.
    pub(crate) keeps: bool,
}

/// Where an iterable stands behind a task.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reached {
    /// How many items the rank was given.
    pub(crate) items: u64,
    /// Where the iterable stands, if it can say so.
    pub(crate) state: Option<Vec<u8>>,
    /// The epoch's end was given out.
    pub(crate) is_over: bool,
}

/// What makes a task again, of items that were pulled for it.
pub(crate) struct Rebuilder<B> {
    pub(crate) factory: Arc<dyn Factory<B>>,
    pub(crate) place: Place,
}

impl<B: 'static> OwnItems<B> {
    pub(crate) fn again(&self) -> Rebuilder<B> {
        Rebuilder {
            factory: Arc::clone(&self.factory),
            place: self.place,
        }
    }

    /// How many items there are.
    pub(crate) fn rows(&self) -> usize {
        self.place.rows
    }

    /// Drops what is left of the items. (They are the user's.)
    pub(crate) fn into_reached(self) -> Reached {
        drop_each([self.factory]);
        self.reached
    }
}
