//! A member's key and field, as Python's webdataset takes them from its name.
//!
//! Source: webdataset 1.0.2, `tariterators.py`: `base_plus_ext`, `tar_file_iterator`, `group_by_keys`.

/// The key and the field of the member called `name`; `None` if webdataset leaves such a member out.
///
/// It is the match of `^((?:.*/|)[^.]+)[.]([^/]*)$`: the key goes to the first dot of the last component, and what follows is the field
/// (`group_by_keys` makes it lower case). A hidden file in a folder without a dot (`a/.b`) has the key `a/`, for `[^.]+` takes a slash.
pub(super) fn split(name: &str) -> Option<(&str, String)> {
    if is_meta(name) {
        return None;
    }
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = last + name[last..].find('.')?;
    let (key, field) = (&name[..dot], &name[dot + 1..]);
    // `.*/` takes whole components, up to a line break; then `[^.]+` must come to the dot, and take one character or more.
    let starts = key.match_indices('/').map(|(slash, _)| slash + 1);
    let lines = key.find('\n').unwrap_or(key.len());
    let matches =
        |start: usize| start < dot && (start == 0 || start <= lines) && !key[start..].contains('.');
    let found = matches(0) || starts.into_iter().any(matches);
    found.then(|| (key, field.to_lowercase()))
}

/// Whether the first component begins and ends with two underscores: webdataset keeps such names for itself.
fn is_meta(name: &str) -> bool {
    let first = name.split('/').next().unwrap_or(name);
    // (`$` also matches before a line break at the end.)
    let first = match name.contains('/') {
        true => first,
        false => first.strip_suffix('\n').unwrap_or(first),
    };
    first.len() >= 4 && first.starts_with("__") && first.ends_with("__")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of `re.match` and `str.lower` in Python 3.11, from `tests/fixtures/shards.py`.
    #[test]
    fn names_split_as_webdataset_splits_them() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fixtures/shards/names.json"
        );
        let cases: Vec<(String, Option<(String, String)>)> =
            serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert!(cases.len() > 50);
        for (name, expected) in cases {
            let found = split(&name).map(|(key, field)| (key.to_owned(), field));
            assert_eq!(found, expected, "{name:?}");
        }
    }
}
