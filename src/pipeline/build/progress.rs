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
}

impl dataset::Progress for Progress {
    fn report(&self) {
        let rows = self.from.get()..self.row.get();
        if !rows.is_empty() {
            self.from.set(rows.end);
            self.announced.loaded(&self.place, rows);
        }
    }
}
