//! An attempt at a page of a listing, and at a range of an object.

use std::ops::Range;

use futures_util::StreamExt;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};
use tokio::time::timeout;

use super::attempts::Limits;
use super::client::{Client, date};
use super::failure::{Failure, Miss};
use super::version::{compare, condition};
use crate::store::{Object, StoreErrorKind};
use crate::sync::Arc;

/// A page of a listing.
pub(super) struct Page {
    pub(super) objects: Vec<ObjectMeta>,
    pub(super) next: Option<String>,
    /// When it was sent.
    pub(super) date: Option<u64>,
}

pub(super) async fn page(
    client: Client,
    folder: Path,
    token: Option<String>,
    limits: Limits,
) -> Result<Page, Miss> {
    let Some(pages) = client.pages else {
        // (It comes as a whole, and what is sent of it is not seen: the call's own limit ends it.)
        let folder = Some(folder).filter(|folder| !folder.as_ref().is_empty());
        let mut list = client.objects.list(folder.as_ref());
        let mut objects = Vec::new();
        while let Some(meta) = list.next().await {
            objects.push(meta?);
        }
        return Ok(Page {
            objects,
            next: None,
            date: date(),
        });
    };
    let prefix = match folder.as_ref() {
        "" => None,
        folder => Some(format!("{folder}/")),
    };
    let options = PaginatedListOptions {
        page_token: token,
        ..PaginatedListOptions::default()
    };
    let page = timeout(
        limits.silence,
        pages.list_paginated(prefix.as_deref(), options),
    );
    let page = page.await.map_err(|_| Failure::silence(limits.silence))??;
    Ok(Page {
        objects: page.result.objects,
        next: page.page_token,
        date: date(),
    })
}

pub(super) async fn read(
    client: Client,
    path: Path,
    object: Arc<Object>,
    range: Range<u64>,
    limits: Limits,
) -> Result<Vec<u8>, Miss> {
    let silence = |_| Failure::silence(limits.silence);
    // All of an object comes from servers that know no ranges, too.
    let is_whole = range == (0..object.bytes);
    let length = (range.end - range.start) as usize; // it was looked at before
    let options = GetOptions {
        range: (!is_whole).then_some(GetRange::Bounded(range)),
        if_match: object.version.as_deref().and_then(condition),
        ..GetOptions::default()
    };
    let got = timeout(limits.silence, client.objects.get_opts(&path, options));
    let got = got.await.map_err(silence)??;
    compare(&object, &got.meta)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| {
        Failure::lasting(
            StoreErrorKind::Other,
            format!("there is no memory for {length} bytes"),
        )
    })?;
    let mut body = got.into_stream();
    while let Some(part) = timeout(limits.silence, body.next())
        .await
        .map_err(silence)?
    {
        let part = part?;
        if part.len() > length - bytes.len() {
            let what =
                format!("the server has sent more than the {length} bytes that it was asked for");
            return Err(Failure::temporary(what).into());
        }
        bytes.extend_from_slice(&part);
    }
    if bytes.len() < length {
        let what = format!("the server has sent {} of {length} bytes", bytes.len());
        return Err(Failure::temporary(what).into());
    }
    Ok(bytes)
}
