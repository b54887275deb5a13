//! The index that NVIDIA DALI's `wds2idx` makes of a shard: `train-000000.idx`.
//!
//! It is text. The first line is `v1.2` and the number of samples; then there is a line for each sample, and in it, for each of its
//! members, the field, where its contents begin, how long they are, and the member's name. (Source: DALI's tools/wds2idx.py.)

use super::error::{Cause, ShardError};
use super::index::{Grouped, ShardIndex, is_place};
use super::members::Member;
use crate::store::Object;

/// Reads the index called `index` of a shard. Samples are grouped anew, by the members' names: DALI and webdataset differ in some.
pub(super) fn parse(
    text: &str,
    index: &str,
    place: &str,
    object: &Object,
) -> Result<ShardIndex, ShardError> {
    let fault = |line: usize, what: &str| {
        let cause = Cause::Dali {
            index: index.to_owned(),
            line: line + 1,
            what: what.to_owned(),
        };
        ShardError::new(place, None, cause)
    };
    let mut lines = text.lines();
    let count = match lines.next().unwrap_or_default().split_once(' ') {
        Some(("v1.2", count)) => count.trim().parse::<usize>().ok(),
        Some((version, _)) if version.starts_with('v') => {
            return Err(fault(
                0,
                "its version is not v1.2, which has the members' names: make it again with wds2idx of a newer DALI, or leave it out",
            ));
        }
        _ => None,
    };
    let count = count.ok_or_else(|| {
        fault(
            0,
            "it begins with no version and number of samples, so it is no index of wds2idx",
        )
    })?;
    let (mut grouped, mut found, mut last) = (Grouped::default(), 0, 0);
    for (at, line) in lines
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        found += 1;
        let words: Vec<&str> = line.split_whitespace().collect();
        let (members, []) = words.as_chunks::<4>() else {
            return Err(fault(
                at + 1,
                "it has not four words for each member (perhaps a name has a space): leave the index out",
            ));
        };
        for [_, start, bytes, name] in members {
            let (Ok(start), Ok(bytes)) = (start.parse::<u64>(), bytes.parse::<u64>()) else {
                return Err(fault(
                    at + 1,
                    "the second and third word of a member are no numbers (perhaps a name has a space): leave the index out",
                ));
            };
            if !is_place(start, bytes, object.bytes) || start < last {
                return Err(fault(
                    at + 1,
                    "a member lies where the shard has none: it is the index of another shard, or of another version of it; make it again, or leave it out",
                ));
            }
            last = start;
            let name = (*name).to_owned();
            grouped.add(
                place,
                &Member {
                    name,
                    at: start,
                    bytes,
                    is_sparse: false,
                },
            )?;
        }
    }
    match found == count {
        true => Ok(grouped.finish()),
        false => Err(fault(
            0,
            &format!(
                "it has {found} lines for {count} samples: it is cut off; make it again, or leave it out"
            ),
        )),
    }
}
