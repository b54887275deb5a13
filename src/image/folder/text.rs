//! Lists of pictures in text files.

use std::path::Path;

use super::files::{FileList, FileListBuilder};
use super::walk::is_picture;
use crate::{Error, Result};

/// Reads lines of a path, a tab and a class, or of a path alone.
pub(super) fn read(list: &Path) -> Result<FileList> {
    let text = std::fs::read_to_string(list).map_err(|source| Error::Io {
        path: list.to_owned(),
        source,
    })?;
    let mut builder = FileListBuilder::default();
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

/// The name of a picture's folder, if the path is that of a picture.
fn folder_of(path: &Path) -> Option<&str> {
    if !is_picture(path.file_name()?) {
        return None;
    }
    path.parent()?.file_name()?.to_str()
}
