//! Which fields are read of samples, and which each must have: [`Fields`].

use crate::error::{BoxError, Error};

/// The fields that were chosen; none: all are read, and none is required.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    chosen: Vec<Chosen>,
    /// Whether samples that lack one are left out.
    pub(super) skip_incomplete: bool,
}

#[derive(Debug, Clone)]
struct Chosen {
    /// The first of these that a sample has.
    names: Vec<String>,
    is_required: bool,
}

impl Chosen {
    fn text(&self) -> String {
        self.names.join(";")
    }
}

impl Fields {
    pub(super) fn add(&mut self, names: &str, is_required: bool) {
        let names = names
            .split(';')
            .map(|name| name.trim().to_lowercase())
            .collect();
        self.chosen.push(Chosen { names, is_required });
    }

    /// That all have names.
    pub(super) fn check(&self) -> Result<(), BoxError> {
        let mut chosen = self.chosen.iter();
        match chosen.find(|chosen| chosen.names.iter().any(String::is_empty)) {
            None => Ok(()),
            Some(chosen) => {
                let reason = format!(
                    "{:?} has an empty name; names are given as \"jpg;jpeg;png\"",
                    chosen.text()
                );
                Err(Error::option("field", reason).into())
            }
        }
    }

    /// Whether the field of this name is read.
    pub(super) fn takes(&self, name: &str) -> bool {
        let is_it = |chosen: &Chosen| chosen.names.iter().any(|of| of == name);
        self.chosen.is_empty() || self.chosen.iter().any(is_it)
    }

    /// What a sample lacks that has such fields.
    pub(super) fn lacks(&self, has: impl Fn(&str) -> bool) -> Option<String> {
        let lacks = |chosen: &&Chosen| chosen.is_required && !chosen.names.iter().any(|of| has(of));
        self.chosen.iter().find(lacks).map(Chosen::text)
    }

    /// As they were given.
    pub(super) fn texts(&self) -> Vec<String> {
        self.chosen.iter().map(Chosen::text).collect()
    }

    /// What each sample must have.
    pub(super) fn required(&self) -> impl Iterator<Item = String> {
        let required = self.chosen.iter().filter(|chosen| chosen.is_required);
        required.map(Chosen::text)
    }
}
