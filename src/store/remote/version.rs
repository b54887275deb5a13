//! Which version of an object a server has.

use object_store::ObjectMeta;

use super::failure::{Failure, changed};
use crate::store::{Object, StoreErrorKind};

/// How a version is written that is the time of the last change, in seconds; and one that says little, because another change may have
/// followed in the same second.
const MODIFIED: &str = "modified ";
const MODIFIED_LATELY: &str = "W/modified ";

/// From when on a time of change is one that no other change has had: clocks of servers that write and answer differ (RFC 9110, 8.8.2.2).
const SETTLED: i64 = 60;

/// What tells an object from what it was before. It begins with `W/` if that is not certain. `date` is when the server said so.
pub(super) fn version(meta: &ObjectMeta, date: Option<u64>) -> Option<String> {
    if let Some(tag) = meta.e_tag.as_deref().filter(|tag| !tag.is_empty()) {
        return Some(quoted(tag));
    }
    let seconds = meta.last_modified.timestamp();
    if seconds == 0 {
        return None; // the server did not say
    }
    let date = date.and_then(|date| i64::try_from(date).ok());
    let is_settled = date.is_some_and(|date| date >= seconds.saturating_add(SETTLED));
    let written = if is_settled {
        MODIFIED
    } else {
        MODIFIED_LATELY
    };
    Some(format!("{written}{seconds}"))
}

/// An ETag in quotes. (Azure lists them without.)
fn quoted(tag: &str) -> String {
    match tag.starts_with('"') || tag.starts_with("W/") {
        true => tag.to_owned(),
        false => format!("\"{tag}\""),
    }
}

/// The time that a version is, if it is one.
fn seconds(version: &str) -> Option<&str> {
    let of_change = version.strip_prefix(MODIFIED);
    of_change.or_else(|| version.strip_prefix(MODIFIED_LATELY))
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
    let (listed, now) = match seconds(listed) {
        Some(seconds) => {
            let now = meta.last_modified.timestamp();
            let of_change = format!("{MODIFIED}{seconds}");
            (of_change, Some(format!("{MODIFIED}{now}")))
        }
        None => (listed.clone(), meta.e_tag.as_deref().map(quoted)),
    };
    match now {
        Some(now) if now == listed => Ok(()),
        Some(now) => Err(changed(format!("its version was {listed}, and is {now}"))),
        None => Err(changed(format!(
            "its version was {listed}, and the server says none now"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;

    use super::*;

    const CHANGED: i64 = 1_700_000_000;

    fn meta(tag: Option<&str>) -> ObjectMeta {
        ObjectMeta {
            location: Path::from("a"),
            last_modified: std::time::UNIX_EPOCH
                .checked_add(std::time::Duration::from_secs(CHANGED as u64))
                .unwrap()
                .into(),
            size: 3,
            e_tag: tag.map(str::to_owned),
            version: None,
        }
    }

    fn object(version: Option<String>) -> Object {
        Object {
            key: "a".to_owned(),
            bytes: 3,
            version,
        }
    }

    #[test]
    fn what_may_change_without_another_version_says_so() {
        let of = |tag, date| version(&meta(tag), date).unwrap();
        assert_eq!(of(Some("\"1\""), None), "\"1\"");
        assert_eq!(of(Some("0x8D"), None), "\"0x8D\"");
        assert_eq!(of(Some("W0x8D"), None), "\"W0x8D\"");
        assert_eq!(of(Some("W/\"1\""), None), "W/\"1\"");
        let changed = CHANGED as u64;
        assert_eq!(of(None, Some(changed + 60)), "modified 1700000000");
        for date in [None, Some(changed), Some(changed + 59)] {
            assert_eq!(of(None, date), "W/modified 1700000000");
        }
    }

    #[test]
    fn each_version_is_that_of_its_object() {
        for tag in [Some("\"1\""), Some("0x8D"), Some("W/\"1\""), None] {
            for date in [None, Some(CHANGED as u64 + 99)] {
                let object = object(version(&meta(tag), date));
                assert!(compare(&object, &meta(tag)).is_ok(), "{object:?}");
                let another = ObjectMeta {
                    last_modified: meta(None).last_modified + std::time::Duration::from_secs(1),
                    ..meta(tag.map(|_| "\"2\""))
                };
                assert!(compare(&object, &another).is_err(), "{object:?}");
            }
        }
    }
}
