//! What an attempt's failure means: whether to try again, and what to tell the reader.

use std::error::Error as StdError;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::Error as ClientError;
use object_store::client::{HttpError, HttpErrorKind};

use super::client::{Answer, Protocol};
use super::pace;
use crate::store::StoreErrorKind;

/// Why an attempt failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) kind: StoreErrorKind,
    pub(super) what: String,
    /// Another attempt may succeed.
    pub(super) is_temporary: bool,
    /// The server asks not to be asked before.
    pub(super) retry_after: Option<Duration>,
}

/// What an attempt ends with that fails: an error of object_store, which needs the server's answer to be understood, or what was seen here.
#[derive(Debug)]
pub(super) enum Miss {
    Theirs(ClientError),
    Ours(Failure),
}

impl From<ClientError> for Miss {
    fn from(error: ClientError) -> Miss {
        Miss::Theirs(error)
    }
}

impl From<Failure> for Miss {
    fn from(failure: Failure) -> Miss {
        Miss::Ours(failure)
    }
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    List,
    Look,
    Read,
}

impl Failure {
    /// What stays as it is.
    pub(super) fn lasting(kind: StoreErrorKind, what: impl Into<String>) -> Failure {
        Failure {
            kind,
            what: what.into(),
            is_temporary: false,
            retry_after: None,
        }
    }

    /// What may go away.
    pub(super) fn temporary(what: impl Into<String>) -> Failure {
        Failure {
            is_temporary: true,
            ..Failure::lasting(StoreErrorKind::Unavailable, what)
        }
    }

    /// The server has said nothing for so long.
    pub(super) fn silence(limit: Duration) -> Failure {
        let what = format!("the server has sent nothing for {}", seconds(limit));
        Failure::temporary(what)
    }

    /// What an error of object_store means, with what the server answered.
    pub(super) fn of(
        error: &ClientError,
        answer: &Answer,
        protocol: Protocol,
        request: Request,
    ) -> Failure {
        if let Some(server) = &answer.asked_for_credentials {
            let connection = transport(error);
            return Failure {
                // (A server of credentials that cannot be reached may be one that has just begun, as a machine's own does.)
                is_temporary: connection.is_some() || answer.status.is_some_and(comes_and_goes),
                ..Failure::lasting(
                    StoreErrorKind::Denied,
                    format!(
                        "there are no credentials: {server} gave none ({}). {}",
                        connection.unwrap_or_else(|| said(answer, None)),
                        how_to_identify(protocol)
                    ),
                )
            };
        }
        match answer.status {
            Some(status @ 300..) => Failure::of_status(status, error, answer, protocol, request),
            _ => Failure::of_transport(error, request),
        }
    }

    fn of_status(
        status: u16,
        error: &ClientError,
        answer: &Answer,
        protocol: Protocol,
        request: Request,
    ) -> Failure {
        use StoreErrorKind::*;
        let code = code(error);
        let said = said(answer, code.as_deref());
        let (kind, what) = match (status, code.as_deref()) {
            (_, Some("NoSuchBucket" | "ContainerNotFound")) => (
                NotFound,
                format!(
                    "there is no such bucket ({said}): check its name, and in which account, region or endpoint it is"
                ),
            ),
            (301 | 307 | 400, _) if answer.region.is_some() => (
                Other,
                format!(
                    "the bucket is in another region ({said}): set AWS_REGION={}",
                    answer.region.as_deref().unwrap_or_default()
                ),
            ),
            (404 | 410, _) if request == Request::List => (
                NotFound,
                format!("there is nothing to list ({said}): check the URL"),
            ),
            (404 | 410, _) => (
                NotFound,
                format!(
                    "there is no such object ({said}): check the key, and the bucket's name. It may have been deleted after it was listed"
                ),
            ),
            (401 | 403, _) => {
                let needed = match (protocol, request) {
                    (Protocol::S3, Request::List) => ", and that they allow s3:ListBucket",
                    (Protocol::S3, _) => {
                        ", and that they allow s3:GetObject. (Who may not list a bucket is told this of keys that do not exist, too.)"
                    }
                    _ => "",
                };
                (
                    Denied,
                    format!(
                        "access is denied ({said}). {}{needed}",
                        how_to_identify(protocol)
                    ),
                )
            }
            (405 | 501, _) if request == Request::List => (
                Other,
                format!(
                    "this server lists nothing ({said}; a web server does with WebDAV's PROPFIND): ask for objects by their keys"
                ),
            ),
            (412, _) => (
                Changed,
                changed(&format!("its ETag is another one now ({said})")),
            ),
            (416, _) => (
                Changed,
                changed(&format!("it is shorter than it was ({said})")),
            ),
            _ if comes_and_goes(status) || code.as_deref() == Some("RequestTimeout") => (
                Unavailable,
                format!("the server cannot answer now ({said})"),
            ),
            _ => (Other, format!("the server refuses the request ({said})")),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let asked = answer.retry_after.as_deref();
        Failure {
            is_temporary: kind == Unavailable,
            retry_after: asked.and_then(|text| pace::retry_after(text, now)),
            ..Failure::lasting(kind, what)
        }
    }

    /// The connection is at fault, or what came through it, or nothing was sent.
    fn of_transport(error: &ClientError, request: Request) -> Failure {
        let text = error.to_string();
        let has_no_ranges = matches!(error, ClientError::NotSupported { .. }); // of a web server
        if has_no_ranges || text.contains("non-partial response") {
            return Failure::lasting(
                StoreErrorKind::Other,
                "the server ignores ranges, and sends whole objects: read whole objects of it, or serve them by a server that knows `Range`",
            );
        }
        // (The innermost error says it, where a list was asked for.)
        let what = transport(error);
        let is_refused = |text: &str| text.contains("scheme is not allowed");
        if is_refused(&text) || what.as_deref().is_some_and(is_refused) {
            return Failure::lasting(
                StoreErrorKind::Other,
                "the endpoint is http://, where credentials and data travel in the open: allow that by AWS_ALLOW_HTTP=true (or AZURE_, GOOGLE_)",
            );
        }
        match what {
            Some(what) => Failure::temporary(what),
            None if request == Request::List => Failure::lasting(
                StoreErrorKind::Other,
                format!("the list is of no form that is known: {}", plain(&text)),
            ),
            None => Failure::lasting(StoreErrorKind::Other, plain(&text)),
        }
    }
}

/// That an object is not the one that was listed, and what this means.
pub(super) fn changed(what: &str) -> String {
    format!(
        "the object was changed after it was listed: {what}. What was read of it before does not belong to what would be read now"
    )
}

pub(super) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Statuses of a server that may be another one soon.
fn comes_and_goes(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// What a server said: its status, and the code of its error.
fn said(answer: &Answer, code: Option<&str>) -> String {
    let status = answer.status.map(|status| status.to_string());
    let words = [status.as_deref(), code].into_iter().flatten();
    let words: Vec<&str> = words.collect();
    words.join(" ")
}

/// The code in an error's body of XML. (Of the rest, nothing is said: it may have the signature that was sent, and the key's id.)
fn code(error: &ClientError) -> Option<String> {
    let text = error.to_string();
    let code = text.split_once("<Code>")?.1.split_once("</Code>")?.0;
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    (code.len() <= 64 && code.chars().all(is_name)).then(|| code.to_owned())
}

/// What is wrong with a connection; `None` if nothing is.
fn transport(error: &ClientError) -> Option<String> {
    let mut link: Option<&(dyn StdError + 'static)> = Some(error);
    let mut kind = None;
    let mut innermost = String::new();
    while let Some(error) = link {
        if let Some(error) = error.downcast_ref::<HttpError>() {
            kind = Some(error.kind());
        }
        if error.is::<io::Error>() || kind.is_some() {
            innermost = error.to_string();
        }
        link = error.source();
    }
    let what = match kind? {
        HttpErrorKind::Connect => "no connection",
        HttpErrorKind::Timeout => "no answer in time",
        HttpErrorKind::Request | HttpErrorKind::Interrupted | HttpErrorKind::Decode => {
            "the connection was cut"
        }
        _ if innermost.contains("builder error") => return None,
        _ => "the connection failed",
    };
    Some(format!("{what} ({})", plain(&innermost)))
}

/// Text of another library's, on one line, not too long, and without what the environment keeps secret.
pub(super) fn plain(text: &str) -> String {
    const MOST: usize = 300;
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (name, value) in std::env::vars_os() {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        let is_secret = ["AWS_", "AZURE_", "GOOGLE_"]
            .iter()
            .any(|of| name.starts_with(of))
            && ["KEY", "SECRET", "TOKEN", "SAS", "CREDENTIAL"]
                .iter()
                .any(|of| name.contains(of));
        if is_secret && value.len() >= 4 {
            text = text.replace(&*value, &format!("[{name}]"));
        }
    }
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn how_to_identify(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::S3 => {
            "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN in the environment (profiles of ~/.aws are not read: `aws \
             configure export-credentials --format env` prints them; a public bucket takes AWS_SKIP_SIGNATURE=true)"
        }
        Protocol::Google => {
            "Check GOOGLE_APPLICATION_CREDENTIALS in the environment, or `gcloud auth application-default login`"
        }
        Protocol::Azure => {
            "Check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN) in the environment"
        }
        Protocol::Http => "No credentials are sent to a web server",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine's own server of credentials is not there at once when the machine begins.
    #[test]
    fn a_server_of_credentials_that_cannot_be_reached_is_asked_again() {
        let failure = |answer: Answer, source: Box<dyn StdError + Send + Sync>| {
            let store = "S3";
            let error = ClientError::Generic { store, source };
            Failure::of(&error, &answer, Protocol::S3, Request::Read)
        };
        let asked = |status| Answer {
            status,
            asked_for_credentials: Some("169.254.169.254".to_owned()),
            ..Answer::default()
        };
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let refused = HttpError::new(HttpErrorKind::Connect, refused);
        let failed = failure(asked(None), refused.into());
        assert!(failed.is_temporary, "{failed:?}");
        assert_eq!(failed.kind, StoreErrorKind::Denied);
        assert!(failed.what.contains("no connection"), "{failed:?}");
        assert!(failure(asked(Some(503)), "busy".into()).is_temporary);
        let failed = failure(asked(Some(404)), "no role".into());
        assert!(!failed.is_temporary, "{failed:?}");
    }
}
