//! Which version of an object a server has.

use object_store::ObjectMeta;

use super::failure::{Failure, changed};
use crate::store::{Object, StoreErrorKind};

/// How a version is written that is the time of the last change.
const MODIFIED: &str = "modified ";

/// What tells an object from what it was before.
pub(super) fn version(meta: &ObjectMeta) -> Option<String> {
    match &meta.e_tag {
        Some(tag) if !tag.is_empty() => Some(strong(tag)),
        _ => {
            let seconds = meta.last_modified.timestamp();
            (seconds != 0).then(|| format!("{MODIFIED}{seconds}")) // 0: the server did not say
        }
    }
}

/// An ETag in quotes. (Azure lists them without.)
fn strong(tag: &str) -> String {
    match tag.starts_with(['"', 'W']) {
        true => tag.to_owned(),
        false => format!("\"{tag}\""),
    }
}

/// The ETag that a request may ask for: a weak one never matches (RFC 9110, 13.1.1).
pub(super) fn condition(version: &str) -> Option<String> {
    version.starts_with('"').then(|| version.to_owned())
}

/// Whether what the server sends is of the object that was listed.
pub(super) fn compare(object: &Object, meta: &ObjectMeta) -> Result<(), Failure> {
    let changed = |what: String| Failure::lasting(StoreErrorKind::Changed, changed(&what));
    if meta.size != object.bytes {
        let (had, has) = (object.bytes, meta.size);
        return Err(changed(format!("it had {had} bytes and has {has}")));
    }
    let Some(listed) = &object.version else {
        return Ok(());
    };
    let now = match listed.starts_with(MODIFIED) {
        true => Some(format!("{MODIFIED}{}", meta.last_modified.timestamp())),
        false => meta.e_tag.as_deref().map(strong),
    };
    match now {
        Some(now) if now == *listed => Ok(()),
        Some(now) => Err(changed(format!("its version was {listed}, and is {now}"))),
        None => Err(changed(format!(
            "its version was {listed}, and the server says none now"
        ))),
    }
}
