//! How far a thread is with the rows of a task, for a data set that reads blocks: what it read for rows that were loaded is not needed any more.

use std::cell::Cell;
use std::rc::Rc;

use crate::dataset;
use crate::pipeline::lookahead::Announced;
use crate::pipeline::plan::partition::Place;
use crate::sync::Arc;

pub(super) struct Progress {
    announced: Arc<Announced>,
    place: Place,
    /// The rows of the place that were loaded, and not reported.
    from: Cell<usize>,
    row: Cell<usize>,
    /// One call gets several rows from there on: which of them it has is not known.
    gets_several: Cell<bool>,
}

/// See [`Progress::several`].
pub(super) struct Several<'a>(&'a Progress);

impl Drop for Several<'_> {
    fn drop(&mut self) {
        self.0.gets_several.set(false);
    }
}

impl Progress {
    /// `None`: nothing needs to know.
    pub(super) fn new(announced: Option<&Arc<Announced>>, place: Place) -> Option<Rc<Progress>> {
        let announced = announced.filter(|announced| announced.wants_to_know())?;
        (!place.is_empty()).then(|| {
            Rc::new(Progress {
                announced: Arc::clone(announced),
                place,
                from: Cell::new(0),
                row: Cell::new(0),
                gets_several: Cell::new(false),
            })
        })
    }

    /// Rows are loaded from this one on.
    pub(super) fn begins(&self, row: usize) {
        self.from.set(row);
        self.row.set(row);
    }

    /// The rows before this one were loaded.
    pub(super) fn comes_to(&self, row: usize) {
        self.row.set(row);
    }

    /// Until what is returned is dropped, a call gets several rows.
    pub(super) fn several(&self) -> Several<'_> {
        self.gets_several.set(true);
        Several(self)
    }
}

impl dataset::Progress for Progress {
    fn report(&self) -> bool {
        let rows = self.from.get()..self.row.get();
        if !rows.is_empty() {
            self.from.set(rows.end);
            self.announced.loaded(&self.place, rows);
        }
        !self.gets_several.get()
    }
}
