//! The index that `wids-index` makes of a set of shards: a JSON file with their names and numbers of samples.

use serde_json::Value;

use crate::error::BoxError;
use crate::store::Store;

/// The shards that the index called `index` names, and how many samples each has.
pub(super) fn parse(
    bytes: &[u8],
    index: &str,
    store: &dyn Store,
) -> Result<Vec<(String, u64)>, BoxError> {
    let fault = |what: &str| format!("{}: {what}", store.locate(index));
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| fault(&format!("it is no JSON: {error}")))?;
    if value.get("wids_version").and_then(Value::as_u64) != Some(1) {
        return Err(fault(
            "its \"wids_version\" is not 1, so it is no index of wids, or of a newer one",
        )
        .into());
    }
    let list = value.get("shardlist").and_then(Value::as_array);
    let list = list.ok_or_else(|| {
        fault("it has no \"shardlist\": indexes of several data sets are not read")
    })?;
    let folder = index.rfind('/').map_or("", |slash| &index[..=slash]);
    let shard = |at: usize, entry: &Value| {
        let url = entry.get("url").and_then(Value::as_str);
        let samples = entry.get("nsamples").and_then(Value::as_u64);
        let (Some(url), Some(samples)) = (url, samples) else {
            return Err(fault(&format!(
                "entry {at} of its \"shardlist\" has no \"url\" or no \"nsamples\""
            )));
        };
        let root = store.locate("");
        let root = root.trim_end_matches('/');
        let key = match url
            .strip_prefix(root)
            .and_then(|rest| rest.strip_prefix('/'))
        {
            Some(key) if !root.is_empty() => key.to_owned(),
            _ if url.contains("://") || url.starts_with('/') => {
                return Err(fault(&format!(
                    "its shard {url} is not in this store ({root}): open the store that has it"
                )));
            }
            _ => format!("{folder}{url}"),
        };
        Ok((key, samples))
    };
    let shards: Result<Vec<_>, String> = list
        .iter()
        .enumerate()
        .map(|(at, entry)| shard(at, entry))
        .collect();
    Ok(shards?)
}
