//! Lists of pictures in text files.

use std::path::Path;

use super::files::{Builder, FileList};
use super::walk::is_picture;
use crate::error::{Error, Result};

/// Reads lines of path, tab and class, or of paths alone.
pub(super) fn read(list: &Path) -> Result<FileList> {
    let text = std::fs::read_to_string(list).map_err(|source| Error::Io {
        path: list.to_owned(),
        source,
    })?;
    let mut builder = Builder::default();
    let mut classes_given = true;
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (path, class) = match line.rsplit_once('\t') {
            Some((path, class)) => (Path::new(path), Some(class.trim())),
            None => {
                classes_given = false;
                (Path::new(line), folder_of(Path::new(line)))
            }
        };
        let Some(class) = class.filter(|class| !class.is_empty()) else {
            let reason = format!(
                "line {} (`{line}`) is neither path, tab and class, nor a path of class folder and picture",
                index + 1
            );
            return Err(Error::DataSet {
                path: list.to_owned(),
                reason,
            });
        };
        builder.push(path, class)?;
    }
    if builder.is_empty() {
        return Err(Error::DataSet {
            path: list.to_owned(),
            reason: "the list is empty: it needs lines of path, tab and class".to_owned(),
        });
    }
    let root = list.parent().unwrap_or(Path::new(""));
    Ok(builder.finish(root, classes_given))
}

/// The name of the folder that a picture lies in, if it is the path of a picture.
fn folder_of(path: &Path) -> Option<&str> {
    if !is_picture(path.file_name()?) {
        return None;
    }
    path.parent()?.file_name()?.to_str()
}
