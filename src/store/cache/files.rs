//! The operations on files that the cache does: few, so that a simulation can fail each of them, and end a process at it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use crate::system::file_lock;

/// A folder. Names are of files in it.
pub(super) trait Files: Send + Sync + 'static {
    /// An open file. Dropping it closes it, which ends its lock.
    type File: Send;

    /// Opens a file, to read and, where that is allowed, to write. `None`: there is none.
    fn open(&self, name: &str) -> io::Result<Option<Self::File>>;

    /// Opens a file, which is made if there is none.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    fn read_at(&self, file: &Self::File, bytes: &mut [u8], at: u64) -> io::Result<()>;

    fn write_at(&self, file: &Self::File, bytes: &[u8], at: u64) -> io::Result<()>;

    fn len(&self, file: &Self::File) -> io::Result<u64>;

    fn set_len(&self, file: &Self::File, bytes: u64) -> io::Result<()>;

    /// Locks a file, if nobody has it. Returns whether it is locked.
    fn try_lock(&self, file: &Self::File) -> io::Result<bool>;

    /// Waits for a file, and locks it.
    fn lock(&self, file: &Self::File) -> io::Result<()>;

    /// Unlocks and closes a file.
    fn release(&self, file: Self::File);

    /// Whether this open file is the one that has the name.
    fn has_name(&self, file: &Self::File, name: &str) -> io::Result<bool>;

    /// Renames a file. No other has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. It is no error if there is none.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// All files, and their lengths.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// Where it is, for messages.
    fn place(&self) -> String;
}

/// A real folder.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) folder: PathBuf,
}

impl Files for Disk {
    type File = File;

    fn open(&self, name: &str) -> io::Result<Option<File>> {
        let path = self.folder.join(name);
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let opened = match opened {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                File::open(&path)
            }
            opened => opened,
        };
        match opened {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(self.folder.join(name))
    }

    fn read_at(&self, file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
        crate::store::local::read_exact_at(file, bytes, at)
    }

    #[cfg(unix)]
    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
    }

    /// (A cache is refused there.)
    #[cfg(not(unix))]
    fn write_at(&self, _: &File, _: &[u8], _: u64) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn len(&self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn set_len(&self, file: &File, bytes: u64) -> io::Result<()> {
        file.set_len(bytes)
    }

    fn try_lock(&self, file: &File) -> io::Result<bool> {
        file_lock::try_lock(file)
    }

    fn lock(&self, file: &File) -> io::Result<()> {
        file_lock::lock(file)
    }

    fn release(&self, file: File) {
        file_lock::unlock(&file);
    }

    #[cfg(unix)]
    fn has_name(&self, file: &File, name: &str) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let named = match fs::metadata(self.folder.join(name)) {
            Ok(named) => named,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let open = file.metadata()?;
        Ok((open.dev(), open.ino()) == (named.dev(), named.ino()))
    }

    #[cfg(not(unix))]
    fn has_name(&self, _: &File, _: &str) -> io::Result<bool> {
        Err(ErrorKind::Unsupported.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // (What has a strange name is not ours.)
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.metadata() {
                Ok(metadata) => files.push((name, metadata.len())),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }

    fn place(&self) -> String {
        self.folder.display().to_string()
    }
}
