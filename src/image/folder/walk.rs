//! Lists class folders with several threads, without opening a file.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Scope;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::files::{FileList, Names};
use super::progress::{ListingProgress, Pace};
use crate::{Error, Result};

/// The extensions of pictures: torchvision's `IMG_EXTENSIONS`, and GIF.
pub(super) const EXTENSIONS: [&str; 10] = [
    "jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif",
];

/// A network file system answers many requests at once, and they do not slow down a local disk.
const MAX_THREADS: usize = 16;

/// Threads add to the shared counter in steps of this size, to keep contention low.
const COUNTED: usize = 256;

/// Whether a name has the extension of a picture.
pub(super) fn is_picture(name: &OsStr) -> bool {
    Path::new(name).extension().is_some_and(|ending| {
        EXTENSIONS
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known))
    })
}

/// Lists the class folders of `root`, and the pictures in each. If it takes long, this thread reports to the log and to `progress`.
pub(super) fn list(
    root: &Path,
    pace: Pace,
    progress: &mut dyn FnMut(ListingProgress),
) -> Result<FileList> {
    let mut clock = pace.begin();
    let classes = class_folders(root)?;
    let listing = Listing {
        root,
        classes: &classes,
        next: AtomicUsize::new(0),
        files: AtomicUsize::new(0),
    };
    let mut listed: Vec<Option<Result<Class>>> = classes.iter().map(|_| None).collect();
    let mut folders_done = 0;
    std::thread::scope(|scope| {
        let received = listing.start(scope);
        loop {
            if clock.is_due() {
                let so_far = ListingProgress {
                    folders_done,
                    folders: classes.len(),
                    files: listing.files.load(Ordering::Relaxed),
                };
                let root = root.display();
                let (folders, files) = (so_far.folders, so_far.files);
                log::info!(
                    "{root}: {folders_done} of {folders} class folders are listed, {files} pictures so far"
                );
                progress(so_far);
            }
            let item = match received.recv_timeout(clock.remaining()) {
                Ok(item) => Some(item),
                Err(RecvTimeoutError::Timeout) => continue,
                // The threads are done. If none could be started, this one lists.
                Err(RecvTimeoutError::Disconnected) => listing.next(),
            };
            let Some((index, class)) = item else { break };
            listed[index] = Some(class);
            folders_done += 1;
        }
    });
    let found = listed.into_iter().flatten();
    let found = found.collect::<Result<Vec<Class>>>()?;
    if clock.has_told() {
        let files = listing.files.load(Ordering::Relaxed);
        let (root, seconds) = (root.display(), clock.elapsed().as_secs_f64());
        log::info!(
            "{root}: {files} pictures listed in {seconds:.1} s; ImageFolder::save_index keeps the list"
        );
    }
    report(root, &found);
    refuse_empty(root, &classes, &found)?;
    let names = found.into_iter().map(|class| class.names);
    let parts = classes.iter().cloned().zip(names).collect();
    Ok(FileList::of_classes(root, parts))
}

/// Class folders, shared by the threads that list them.
struct Listing<'a> {
    root: &'a Path,
    classes: &'a [String],
    next: AtomicUsize,
    /// How many pictures were found. Relaxed: it is only reported.
    files: AtomicUsize,
}

/// The index of a class, and the content of its folder.
type Listed = (usize, Result<Class>);

impl Listing<'_> {
    /// Starts the threads. They end when everything is listed, or the receiver is gone.
    fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Receiver<Listed> {
        let (send, received) = crossbeam_channel::unbounded();
        for index in 0..self.classes.len().min(MAX_THREADS) {
            let send = send.clone();
            let work = move || {
                while let Some(listed) = self.next() {
                    if send.send(listed).is_err() {
                        break;
                    }
                }
            };
            // With fewer threads it only takes longer.
            let thread = std::thread::Builder::new().name(format!("pinfeed-list-{index}"));
            if thread.spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        received
    }

    /// Lists the next class folder.
    fn next(&self) -> Option<Listed> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let class = self.classes.get(index)?;
        Some((index, Class::list(self.root, class, &self.files)))
    }
}

/// The names of the folders in `root`, sorted.
fn class_folders(root: &Path) -> Result<Vec<String>> {
    let mut classes = Vec::new();
    let mut pictures = 0;
    for entry in entries(root)? {
        let entry = entry.map_err(|source| io_error(root, source))?;
        let name = entry.file_name();
        match EntryKind::of(&entry, &name)? {
            EntryKind::Folder | EntryKind::LinkedFolder => match name.into_string() {
                Ok(name) => classes.push(name),
                Err(_) => {
                    return Err(Error::DataSet {
                        path: entry.path(),
                        reason: "a class is named by its folder, and this name is not Unicode"
                            .to_owned(),
                    });
                }
            },
            EntryKind::Picture => pictures += 1,
            EntryKind::Hidden | EntryKind::DeadLink | EntryKind::Other => {}
        }
    }
    if classes.is_empty() {
        let reason = format!(
            "there are no folders in it, and {pictures} pictures: pictures are expected in one folder for each \
             class (root/class/picture.jpg); ImageFolder::from_list takes any others"
        );
        return Err(Error::DataSet {
            path: root.to_owned(),
            reason,
        });
    }
    classes.sort_unstable();
    Ok(classes)
}

/// Logs what was skipped, one line per kind.
fn report(root: &Path, found: &[Class]) {
    let report = |what: &str, passed_over: Vec<&PassedOver>| {
        let count: usize = passed_over.iter().map(|passed| passed.count).sum();
        if let Some(first) = passed_over.iter().find_map(|passed| passed.first.as_ref()) {
            let (root, first) = (root.display(), first.display());
            log::warn!("{root}: passed over {count} {what}, for instance {first}");
        }
    };
    let classes = || found.iter();
    report(
        "links that lead nowhere",
        classes().map(|class| &class.dead_links).collect(),
    );
    report(
        "links to a folder that they lie in",
        classes().map(|class| &class.loops).collect(),
    );
    report(
        "files without a picture's ending",
        classes().map(|class| &class.others).collect(),
    );
}

fn refuse_empty(root: &Path, classes: &[String], found: &[Class]) -> Result<()> {
    let mut empty = classes
        .iter()
        .zip(found)
        .filter(|(_, class)| class.names.len() == 0);
    let Some((first, _)) = empty.next() else {
        return Ok(());
    };
    let others = match empty.count() {
        0 => String::new(),
        count => format!(" ({count} other classes neither)"),
    };
    Err(Error::DataSet {
        path: root.join(first),
        reason: format!(
            "this class holds no picture{others}: files with the endings {} are expected in it; remove the folder if \
             it is no class",
            EXTENSIONS.join(", ")
        ),
    })
}

/// The pictures of one class, and what was skipped.
#[derive(Default)]
struct Class {
    names: Names,
    dead_links: PassedOver,
    loops: PassedOver,
    others: PassedOver,
}

#[derive(Default)]
struct PassedOver {
    count: usize,
    first: Option<PathBuf>,
}

impl PassedOver {
    fn note(&mut self, entry: &DirEntry) {
        self.count += 1;
        self.first.get_or_insert_with(|| entry.path());
    }
}

impl Class {
    /// Lists a class folder, and adds the number of its pictures to `count`.
    fn list(root: &Path, class: &str, count: &AtomicUsize) -> Result<Class> {
        let mut found = Class::default();
        let mut folders = Vec::new();
        found.walk(root, class.into(), &mut Vec::new(), &mut folders, count)?;
        // torchvision's order: folders by their whole path, then files by name.
        folders.sort_unstable();
        for (folder, mut files) in folders {
            files.sort_unstable();
            for file in files {
                found.names.push_joined(&[&folder, &file])?;
            }
        }
        Ok(found)
    }

    /// Collects the pictures in `folder` and below it: for each folder, its path from `root` and the names in it. `trail` holds the
    /// folders that links were followed from on the way here.
    fn walk(
        &mut self,
        root: &Path,
        folder: OsString,
        trail: &mut Vec<PathBuf>,
        folders: &mut Vec<(OsString, Vec<OsString>)>,
        count: &AtomicUsize,
    ) -> Result<()> {
        let path = root.join(&folder);
        let mut files = Vec::new();
        for entry in entries(&path)? {
            let entry = entry.map_err(|source| io_error(&path, source))?;
            let name = entry.file_name();
            let kind = EntryKind::of(&entry, &name)?;
            match kind {
                EntryKind::Picture => {
                    files.push(name);
                    if files.len().is_multiple_of(COUNTED) {
                        count.fetch_add(COUNTED, Ordering::Relaxed);
                    }
                }
                EntryKind::Hidden => {}
                EntryKind::DeadLink => self.dead_links.note(&entry),
                EntryKind::Other => self.others.note(&entry),
                EntryKind::Folder | EntryKind::LinkedFolder => {
                    if kind == EntryKind::LinkedFolder {
                        trail.push(canonical(&path)?);
                        let target = canonical(&entry.path())?;
                        if trail.iter().any(|place| place.starts_with(&target)) {
                            self.loops.note(&entry);
                            trail.pop();
                            continue;
                        }
                    }
                    let mut inner = folder.clone();
                    inner.push("/");
                    inner.push(name);
                    self.walk(root, inner, trail, folders, count)?;
                    if kind == EntryKind::LinkedFolder {
                        trail.pop();
                    }
                }
            }
        }
        count.fetch_add(files.len() % COUNTED, Ordering::Relaxed);
        folders.push((folder, files));
        Ok(())
    }
}

/// What an entry of a folder is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    Picture,
    Folder,
    LinkedFolder,
    Hidden,
    DeadLink,
    Other,
}

impl EntryKind {
    /// Uses the type in the directory entry. Only links are looked up.
    fn of(entry: &DirEntry, name: &OsStr) -> Result<EntryKind> {
        if name.as_encoded_bytes().starts_with(b".") {
            return Ok(EntryKind::Hidden);
        }
        let mut kind = entry
            .file_type()
            .map_err(|source| io_error(&entry.path(), source))?;
        let linked = kind.is_symlink();
        if linked {
            kind = match fs::metadata(entry.path()) {
                Ok(target) => target.file_type(),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(io_error(&entry.path(), error));
                }
                Err(_) => return Ok(EntryKind::DeadLink),
            };
        }
        Ok(if kind.is_dir() && linked {
            EntryKind::LinkedFolder
        } else if kind.is_dir() {
            EntryKind::Folder
        } else if kind.is_file() && is_picture(name) {
            EntryKind::Picture
        } else {
            EntryKind::Other
        })
    }
}

fn entries(folder: &Path) -> Result<fs::ReadDir> {
    fs::read_dir(folder).map_err(|source| io_error(folder, source))
}

fn canonical(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).map_err(|source| io_error(path, source))
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The progress reports for three folders with two pictures each.
    fn told(first: Duration, every: Duration) -> Vec<ListingProgress> {
        let root = tempfile::tempdir().unwrap();
        for class in ["ant", "bee", "cat"] {
            fs::create_dir(root.path().join(class)).unwrap();
            for picture in ["1.png", "2.png"] {
                fs::write(root.path().join(class).join(picture), b"").unwrap();
            }
        }
        let (mut told, here) = (Vec::new(), std::thread::current().id());
        let files = list(root.path(), Pace { first, every }, &mut |progress| {
            assert_eq!(std::thread::current().id(), here);
            told.push(progress);
        });
        assert_eq!(files.unwrap().len(), 6);
        told
    }

    #[test]
    fn a_long_listing_is_told_and_a_short_one_is_not() {
        const LONG: Duration = Duration::from_secs(3600);
        let told_once = told(Duration::ZERO, LONG);
        assert_eq!(told_once.len(), 1);
        assert_eq!((told_once[0].folders_done, told_once[0].folders), (0, 3));
        assert!(told(LONG, Duration::ZERO).is_empty());
        // With a report at every step, no number ever decreases.
        let all = told(Duration::ZERO, Duration::ZERO);
        let counts = all.iter().map(|told| (told.folders_done, told.files));
        assert!(counts.is_sorted() && all.len() > 3, "{all:?}");
        assert!(all.iter().all(|told| told.folders == 3 && told.files <= 6));
    }
}
