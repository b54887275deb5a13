//! Listing class folders by several threads, without touching a file.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use super::files::{FileList, Names};
use crate::error::{Error, Result};
use crate::sync::{AtomicUsize, OnceLock, Ordering};

/// The endings of pictures: torchvision's `IMG_EXTENSIONS`.
const EXTENSIONS: [&str; 9] = [
    "jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp",
];

/// A network file system answers many questions at once, and a local disk is not slowed down by them.
const MAX_THREADS: usize = 16;

/// Whether a name has the ending of a picture.
pub(super) fn is_picture(name: &OsStr) -> bool {
    Path::new(name).extension().is_some_and(|ending| {
        EXTENSIONS
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known))
    })
}

/// Lists the class folders of `root`, and the pictures in each.
pub(super) fn list(root: &Path) -> Result<FileList> {
    let classes = class_folders(root)?;
    let listed: Vec<OnceLock<Result<Class>>> = classes.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(class) = classes.get(index) else {
                break;
            };
            let _ = listed[index].set(Class::list(root, class)); // nobody else sets this one
        }
    };
    std::thread::scope(|scope| {
        for index in 1..classes.len().min(MAX_THREADS) {
            // This thread lists, too: where the system gives no more threads, it takes longer and nothing else.
            let thread = std::thread::Builder::new().name(format!("pinfeed-list-{index}"));
            if thread.spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let listed = listed.into_iter().filter_map(OnceLock::into_inner);
    let found = listed.collect::<Result<Vec<Class>>>()?;
    report(root, &found);
    refuse_empty(root, &classes, &found)?;
    let names = found.into_iter().map(|class| class.names);
    Ok(FileList::of_classes(
        root,
        classes.into_iter().zip(names).collect(),
    ))
}

/// The names of the folders in `root`, sorted.
fn class_folders(root: &Path) -> Result<Vec<String>> {
    let mut classes = Vec::new();
    let mut pictures = 0;
    for entry in entries(root)? {
        let entry = entry.map_err(|source| io_error(root, source))?;
        let name = entry.file_name();
        match Kind::of(&entry, &name)? {
            Kind::Folder | Kind::LinkedFolder => match name.into_string() {
                Ok(name) => classes.push(name),
                Err(_) => {
                    return Err(Error::DataSet {
                        path: entry.path(),
                        reason: "a class is named by its folder, and this name is not Unicode"
                            .to_owned(),
                    });
                }
            },
            Kind::Picture => pictures += 1,
            Kind::Hidden | Kind::DeadLink | Kind::Other => {}
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

/// Logs what was passed over, a line for each kind.
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

/// The pictures of one class, and what else there was.
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
    fn list(root: &Path, class: &str) -> Result<Class> {
        let mut found = Class::default();
        let mut folders = Vec::new();
        found.walk(root, class.into(), &mut Vec::new(), &mut folders)?;
        // torchvision's order: folders by their whole path, and then files by name.
        folders.sort_unstable();
        for (folder, mut files) in folders {
            files.sort_unstable();
            for file in files {
                found.names.push_joined(&[&folder, &file])?;
            }
        }
        Ok(found)
    }

    /// Collects the pictures in `folder` and below it: for each folder its path from `root`, and the names in it.
    /// `trail` says where links led out of on the way here.
    fn walk(
        &mut self,
        root: &Path,
        folder: OsString,
        trail: &mut Vec<PathBuf>,
        folders: &mut Vec<(OsString, Vec<OsString>)>,
    ) -> Result<()> {
        let path = root.join(&folder);
        let mut files = Vec::new();
        for entry in entries(&path)? {
            let entry = entry.map_err(|source| io_error(&path, source))?;
            let name = entry.file_name();
            let kind = Kind::of(&entry, &name)?;
            match kind {
                Kind::Picture => files.push(name),
                Kind::Hidden => {}
                Kind::DeadLink => self.dead_links.note(&entry),
                Kind::Other => self.others.note(&entry),
                Kind::Folder | Kind::LinkedFolder => {
                    if kind == Kind::LinkedFolder {
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
                    self.walk(root, inner, trail, folders)?;
                    if kind == Kind::LinkedFolder {
                        trail.pop();
                    }
                }
            }
        }
        folders.push((folder, files));
        Ok(())
    }
}

/// What an entry of a folder is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Picture,
    Folder,
    LinkedFolder,
    Hidden,
    DeadLink,
    Other,
}

impl Kind {
    /// Tells by what the folder says of the entry; only links are looked at themselves.
    fn of(entry: &DirEntry, name: &OsStr) -> Result<Kind> {
        if name.as_encoded_bytes().starts_with(b".") {
            return Ok(Kind::Hidden);
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
                Err(_) => return Ok(Kind::DeadLink),
            };
        }
        Ok(if kind.is_dir() && linked {
            Kind::LinkedFolder
        } else if kind.is_dir() {
            Kind::Folder
        } else if kind.is_file() && is_picture(name) {
            Kind::Picture
        } else {
            Kind::Other
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
