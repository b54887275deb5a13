//! The operations on files that the cache does: few, so that a simulation can fail each of them, and end a process at it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use super::shared::Folder;
use super::sum::sum;
use crate::system::file_lock::LockFile;

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

    /// Which folder it is; `None`: that cannot be told.
    fn folder(&self) -> Option<Folder>;

    /// A number that is another one each time the machine begins; 0: that cannot be told.
    fn boot(&self) -> u64;

    /// Where it is, for messages.
    fn place(&self) -> String;
}

/// A real folder.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) folder: PathBuf,
}

impl Disk {
    /// Makes the folder, if there is none: what is read may be private, so it is for its user alone. The folders around it are as all are.
    pub(super) fn make(&self) -> io::Result<()> {
        if let Some(around) = self.folder.parent() {
            fs::create_dir_all(around)?;
        }
        match private_folder().create(&self.folder) {
            Err(_) if self.folder.is_dir() => Ok(()),
            made => made,
        }
    }
}

#[cfg(unix)]
fn private_folder() -> DirBuilder {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

/// A folder inherits who may read it.
#[cfg(not(unix))]
fn private_folder() -> DirBuilder {
    DirBuilder::new()
}

impl Files for Disk {
    type File = LockFile;

    fn open(&self, name: &str) -> io::Result<Option<LockFile>> {
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
            Ok(file) => Ok(Some(LockFile::new(file))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, name: &str) -> io::Result<LockFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(self.folder.join(name)).map(LockFile::new)
    }

    fn read_at(&self, file: &LockFile, bytes: &mut [u8], at: u64) -> io::Result<()> {
        crate::store::local::read_exact_at(file.file(), bytes, at)
    }

    #[cfg(unix)]
    fn write_at(&self, file: &LockFile, bytes: &[u8], at: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(file.file(), bytes, at)
    }

    /// (A cache is refused there.)
    #[cfg(not(unix))]
    fn write_at(&self, _: &LockFile, _: &[u8], _: u64) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn len(&self, file: &LockFile) -> io::Result<u64> {
        Ok(file.file().metadata()?.len())
    }

    fn set_len(&self, file: &LockFile, bytes: u64) -> io::Result<()> {
        file.file().set_len(bytes)
    }

    fn try_lock(&self, file: &LockFile) -> io::Result<bool> {
        file.try_lock()
    }

    fn lock(&self, file: &LockFile) -> io::Result<()> {
        file.lock()
    }

    fn release(&self, file: LockFile) {
        drop(file);
    }

    #[cfg(unix)]
    fn has_name(&self, file: &LockFile, name: &str) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let named = match fs::metadata(self.folder.join(name)) {
            Ok(named) => named,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let open = file.file().metadata()?;
        Ok((open.dev(), open.ino()) == (named.dev(), named.ino()))
    }

    #[cfg(not(unix))]
    fn has_name(&self, _: &LockFile, _: &str) -> io::Result<bool> {
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

    #[cfg(unix)]
    fn folder(&self) -> Option<Folder> {
        use std::os::unix::fs::MetadataExt;
        let folder = fs::metadata(&self.folder).ok()?;
        Some((folder.dev(), folder.ino()))
    }

    #[cfg(not(unix))]
    fn folder(&self) -> Option<Folder> {
        None
    }

    /// (Of Linux. In a container, it is that of the machine.)
    fn boot(&self) -> u64 {
        let boot = fs::read("/proc/sys/kernel/random/boot_id");
        boot.map_or(0, |boot| sum(&boot).max(1))
    }

    fn place(&self) -> String {
        self.folder.display().to_string()
    }
}
