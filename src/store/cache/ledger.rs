//! The lock of the folder, under which all of its names change, and how many bytes it has.

use std::io::{self, ErrorKind};

use super::files::Files;
use super::page::Page;
use super::sum::sum;

/// The ledger's file, which also says that a folder is a cache.
pub(super) const NAME: &str = "pinfeed-cache";

/// The format, as a line of text; then the record.
const FORMAT: usize = 64;
const RECORD: usize = 32;

/// What the record's own sum covers: bytes, state, boot.
const SUMMED: usize = 24;

/// The record says that names are changing, and the number may be wrong.
const CHANGING: u64 = 1;
const SETTLED: u64 = 0;

/// The folder, locked. Others wait for it, so nothing is requested of a store while it is held.
pub(super) struct Ledger<'a, F: Files> {
    files: &'a F,
    file: Option<F::File>,
    boot: u64,
    /// How many bytes pages and parts have together.
    pub(super) used: u64,
    /// The number was written since the machine began. Before that, it may have lost power.
    pub(super) is_of_this_boot: bool,
    is_changing: bool,
    /// Something failed, so that the number may be wrong: the next one counts.
    is_unsure: bool,
}

impl<'a, F: Files> Ledger<'a, F> {
    /// Locks the folder, and counts what it has if a process died while it changed names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidData`] if it is of another version; and what the system says.
    pub(super) fn lock(files: &'a F, page_bytes: u64, boot: u64) -> io::Result<Ledger<'a, F>> {
        let file = loop {
            let file = files.create(NAME)?;
            files.lock(&file)?;
            if files.has_name(&file, NAME)? {
                break file;
            }
            files.release(file); // somebody has removed it meanwhile
        };
        let mut ledger = Ledger {
            files,
            file: Some(file),
            boot,
            used: 0,
            is_of_this_boot: false,
            is_changing: false,
            is_unsure: false,
        };
        match ledger.read(page_bytes)? {
            Some((used, of_boot)) => {
                (ledger.used, ledger.is_of_this_boot) = (used, of_boot == boot && boot != 0);
            }
            None => ledger.count()?,
        }
        Ok(ledger)
    }

    /// How many bytes the ledger says that there are, without locking it; `None` if names are being changed, or that is not known.
    pub(super) fn peek(files: &F, page_bytes: u64) -> io::Result<Option<u64>> {
        let Some(file) = files.open(NAME)? else {
            return Ok(None);
        };
        let written = written(files, &file);
        files.release(file);
        let (text, record) = written?;
        let is_known = text == format(page_bytes);
        let used = used(&record).filter(|_| is_known);
        Ok(used.map(|(used, _)| used))
    }

    /// How many bytes there are, as it is written, and of which run of the machine; `None` if that is not known.
    fn read(&mut self, page_bytes: u64) -> io::Result<Option<(u64, u64)>> {
        let Some(file) = &self.file else {
            return Ok(None); // cannot be
        };
        let format = format(page_bytes);
        let (text, record) = written(self.files, file)?;
        if text == format {
            return Ok(used(&record));
        }
        // It is new, or was when the machine or its process died: some of the text may be there.
        let written = text.iter().rposition(|byte| *byte != 0);
        let written = written.map_or(0, |last| last + 1);
        if text[..written] != format[..written] {
            let text = String::from_utf8_lossy(&text);
            let text = text.trim_end_matches(['\0', ' ', '\n']);
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("it is {text:?}"),
            ));
        }
        self.files.write_at(file, &format, 0)?;
        Ok(None)
    }

    /// Counts anew. What dead processes have left is removed.
    pub(super) fn count(&mut self) -> io::Result<()> {
        self.change()?;
        self.is_unsure = true;
        let mut used = 0;
        for (name, bytes) in self.files.list()? {
            let is_kept = Page::of_file(&name).is_some()
                || Page::is_part(&name) && !self.remove_if_dead(&name)?;
            used += if is_kept { bytes } else { 0 };
        }
        (self.used, self.is_unsure) = (used, false);
        self.is_of_this_boot = true;
        Ok(())
    }

    /// Removes a part whose owner has died. Returns whether there is none now.
    pub(super) fn remove_if_dead(&mut self, part: &str) -> io::Result<bool> {
        let Some(file) = self.files.open(part)? else {
            return Ok(true);
        };
        if !self.files.try_lock(&file)? {
            return Ok(false);
        }
        let bytes = self.files.len(&file)?;
        self.remove(part, bytes)?;
        self.files.release(file);
        Ok(true)
    }

    /// Makes a part, which is locked.
    pub(super) fn create(&mut self, part: &str, bytes: u64) -> io::Result<F::File> {
        self.change()?;
        let file = self.files.create(part)?;
        let made = match self.files.try_lock(&file) {
            Ok(true) => self.files.set_len(&file, bytes),
            Ok(false) => Err(io::Error::other("somebody has it")), // who does not hold the ledger
            Err(error) => Err(error),
        };
        if let Err(error) = made {
            self.is_unsure |= self.files.remove(part).is_err();
            return Err(error);
        }
        self.used += bytes;
        Ok(file)
    }

    /// Removes a file of so many bytes.
    pub(super) fn remove(&mut self, name: &str, bytes: u64) -> io::Result<()> {
        self.change()?;
        let removed = self.files.remove(name);
        match &removed {
            Ok(()) => self.used = self.used.saturating_sub(bytes),
            Err(_) => self.is_unsure = true,
        }
        removed
    }

    /// Makes a page of a part.
    pub(super) fn rename(&mut self, part: &str, page: &str) -> io::Result<()> {
        self.files.rename(part, page)
    }

    /// Marks that names change, before the first does.
    fn change(&mut self) -> io::Result<()> {
        if !self.is_changing {
            self.write(CHANGING)?;
            self.is_changing = true;
        }
        Ok(())
    }

    fn write(&self, state: u64) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(()); // cannot be
        };
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&self.used.to_le_bytes());
        record[8..16].copy_from_slice(&state.to_le_bytes());
        record[16..SUMMED].copy_from_slice(&self.boot.to_le_bytes());
        let sum = sum(&record[..SUMMED]);
        record[SUMMED..].copy_from_slice(&sum.to_le_bytes());
        self.files.write_at(file, &record, FORMAT as u64)
    }
}

/// The format, as it is written.
fn format(page_bytes: u64) -> [u8; FORMAT] {
    let text = format!("pinfeed cache 1, pages of {page_bytes} bytes\n");
    let mut format = [b' '; FORMAT];
    let places = format.iter_mut().zip(text.bytes());
    places.for_each(|(place, byte)| *place = byte);
    format
}

/// What is written in the file: the format, and the record. A file that is too short is as one that is all zeros.
fn written<F: Files>(files: &F, file: &F::File) -> io::Result<([u8; FORMAT], [u8; RECORD])> {
    let (mut text, mut record) = ([0; FORMAT], [0; RECORD]);
    if files.len(file)? >= (FORMAT + RECORD) as u64 {
        files.read_at(file, &mut text, 0)?;
        files.read_at(file, &mut record, FORMAT as u64)?;
    }
    Ok((text, record))
}

/// The bytes that a record says, and when the machine had begun that it is of; `None`: they may be wrong.
fn used(record: &[u8; RECORD]) -> Option<(u64, u64)> {
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&record[at..at + 8]);
        u64::from_le_bytes(number)
    };
    let is_whole = number(SUMMED) == sum(&record[..SUMMED]);
    (is_whole && number(8) == SETTLED).then(|| (number(0), number(16)))
}

impl<F: Files> Drop for Ledger<'_, F> {
    fn drop(&mut self) {
        if self.is_changing && !self.is_unsure {
            // (If that fails, the mark stays, or a record whose sum is wrong: the next one counts.)
            let _ = self.write(SETTLED);
        }
        if let Some(file) = self.file.take() {
            self.files.release(file);
        }
    }
}
