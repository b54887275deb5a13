//! Which objects a pattern names: [`find`].

use std::collections::{BTreeMap, HashSet};

use super::braces;
use super::error::{Cause, ShardError};
use crate::error::{BoxError, is_temporary};
use crate::store::{Object, Store};
use crate::sync::log;

/// What shards in a folder are called that have an index, and that are read from their front.
pub(super) const INDEXED: &[&str] = &[".tar"];
pub(super) const STREAMED: &[&str] = &[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"];

const NO_STARS: &str = "A pattern has braces (\"train-{0000..0146}.tar\"), and no `*`: for all shards of a folder, name the folder, with a slash at the end";

/// The shards of a pattern, in its order. One that ends with a slash, or is empty, is a folder, and names all in it that are called so.
pub(super) fn find(
    store: &dyn Store,
    pattern: &str,
    called: &[&str],
) -> Result<Vec<Object>, BoxError> {
    if pattern.is_empty() || pattern.ends_with('/') {
        return folder(store, pattern, called);
    }
    named(store, &braces::expand(pattern)?)
}

fn folder(store: &dyn Store, folder: &str, called: &[&str]) -> Result<Vec<Object>, BoxError> {
    let objects = store.list(folder.trim_end_matches('/'))?;
    let name = |object: &Object| {
        let ends = called.iter().filter_map(|end| object.key.strip_suffix(end));
        ends.min_by_key(|name| name.len()).map(str::to_owned)
    };
    let (shards, others): (Vec<_>, Vec<_>) = objects
        .into_iter()
        .partition(|object| name(object).is_some());
    let mut names: BTreeMap<String, &str> = BTreeMap::new();
    for shard in &shards {
        if let Some(other) = name(shard).and_then(|name| names.insert(name, &shard.key)) {
            let place = store.locate(folder);
            return Err(format!(
                "{place:?} has {other:?} and {:?}: if they are one shard, its samples would be there twice; name those that are wanted (\"train-{{0000..0099}}.tar.gz\")",
                shard.key
            )
            .into());
        }
    }
    if !shards.is_empty() {
        return Ok(shards);
    }
    let packed = [(".tar.gz", "gzip"), (".tgz", "gzip"), (".tar.zst", "zstd")];
    for object in &others {
        if let Some((_, how)) = packed.iter().find(|(end, _)| object.key.ends_with(end)) {
            let place = store.locate(&object.key);
            return Err(ShardError::new(&place, None, Cause::Compressed(how)).into());
        }
    }
    let place = store.locate(folder);
    Err(format!(
        "{place:?} has no shards: none of its {} files is called *{}",
        others.len(),
        called.join(", *")
    )
    .into())
}

/// The objects of these names. A folder of which several are wanted is listed: one request, instead of one for each.
pub(super) fn named(store: &dyn Store, names: &[String]) -> Result<Vec<Object>, BoxError> {
    let mut twice = HashSet::new();
    if let Some(name) = names.iter().find(|name| !twice.insert(name.as_str())) {
        return Err(format!(
            "the shard {name:?} is named twice, and its samples would be there twice"
        )
        .into());
    }
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    let folder_of = |name: &str| name.rfind('/').unwrap_or(0);
    for name in names {
        *folders.entry(&name[..folder_of(name)]).or_default() += 1;
    }
    let mut listed: BTreeMap<String, Object> = BTreeMap::new();
    let mut unlisted = HashSet::new();
    for (folder, wanted) in folders {
        // (A server without lists, such as a web server's, is asked for each.)
        match (wanted > 1).then(|| store.list(folder)) {
            Some(Ok(objects)) => listed.extend(
                objects
                    .into_iter()
                    .map(|object| (object.key.clone(), object)),
            ),
            Some(Err(error)) if is_temporary(&error) => return Err(error),
            Some(Err(error)) => {
                log::warn!(
                    "{}: it cannot be listed, so each of its {wanted} shards is asked for by itself: {error}",
                    store.locate(folder)
                );
                unlisted.insert(folder);
            }
            None => _ = unlisted.insert(folder),
        }
    }
    let found = names.iter().map(|name| match listed.remove(name) {
        Some(object) => Ok(object),
        None if unlisted.contains(&name[..folder_of(name)]) => {
            store
                .object(name)
                .map_err(|error| match name.contains('*') {
                    true if !is_temporary(&error) => format!("{error}. {NO_STARS}").into(),
                    _ => error,
                })
        }
        None => Err(format!(
            "there is no shard {}, of the {} that are named{}",
            store.locate(name),
            names.len(),
            if name.contains('*') {
                format!(". {NO_STARS}")
            } else {
                String::new()
            }
        )
        .into()),
    });
    found.collect()
}
