//! The clients of object_store, and what of a server's answers they do not pass on.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::{
    ClientConfigKey, ClientOptions, ObjectStore, Result as StoreResult, RetryConfig,
};

use crate::store::cache::sum;
use crate::sync::{Arc, Mutex};

/// What a server said of the last request of an attempt.
#[derive(Debug, Default, Clone)]
pub(super) struct Answer {
    pub(super) status: Option<u16>,
    pub(super) retry_after: Option<String>,
    pub(super) date: Option<String>,
    /// The region of a bucket, if it is another one than was thought.
    pub(super) region: Option<String>,
    /// The server that was asked for credentials, if it was no request for an object.
    pub(super) asked_for_credentials: Option<String>,
}

tokio::task_local! {
    /// The answers to the attempt that the task is at.
    pub(super) static ANSWER: Arc<Mutex<Answer>>;
}

/// A store's client. Its clones have the same connections.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) objects: Arc<dyn ObjectStore>,
    /// What lists a page at a time; `None`: the store lists at once.
    pub(super) pages: Option<Arc<dyn PaginatedListStore>>,
    /// A hash of what tells its server and account from others of that name.
    pub(super) origin: String,
}

/// What requests are made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    S3,
    Google,
    Azure,
    Http,
}

impl Client {
    /// Makes the client of a bucket, from the environment and the options; of a web server, from the URL.
    pub(super) fn new(
        protocol: Protocol,
        url: &str,
        given: &[(String, String)],
    ) -> StoreResult<Client> {
        // (The store's own limits hold; these would end what takes long.)
        let (timeout, day) = (ClientConfigKey::Timeout, "1 day");
        let once = || RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        };
        Ok(match protocol {
            Protocol::S3 => {
                let mut builder = AmazonS3Builder::from_env().with_url(url);
                for (key, value) in given {
                    builder = builder.with_config(key.parse()?, value);
                }
                let builder = builder.with_config(AmazonS3ConfigKey::Client(timeout), day);
                let said = said(
                    &["aws_endpoint_url_s3", "aws_endpoint", "aws_region"],
                    |key| builder.get_config_value(&key.parse().ok()?),
                );
                let store = builder.with_retry(once()).with_http_connector(Connector);
                Client::of_pages(store.build()?, protocol, said)
            }
            Protocol::Google => {
                let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url);
                for (key, value) in given {
                    builder = builder.with_config(key.parse()?, value);
                }
                let builder = builder.with_config(GoogleConfigKey::Client(timeout), day);
                let said = said(&["google_base_url"], |key| {
                    builder.get_config_value(&key.parse().ok()?)
                });
                let store = builder.with_retry(once()).with_http_connector(Connector);
                Client::of_pages(store.build()?, protocol, said)
            }
            Protocol::Azure => {
                let mut builder = MicrosoftAzureBuilder::from_env().with_url(url);
                for (key, value) in given {
                    builder = builder.with_config(key.parse()?, value);
                }
                let builder = builder.with_config(AzureConfigKey::Client(timeout), day);
                let names = [
                    "azure_storage_account_name",
                    "azure_storage_endpoint",
                    "azure_storage_use_emulator",
                    "azure_use_fabric_endpoint",
                ];
                let said = said(&names, |key| builder.get_config_value(&key.parse().ok()?));
                let store = builder.with_retry(once()).with_http_connector(Connector);
                Client::of_pages(store.build()?, protocol, said)
            }
            Protocol::Http => {
                let mut options =
                    ClientOptions::default().with_allow_http(url.starts_with("http://"));
                for (key, value) in given {
                    options = options.with_config(key.parse()?, value);
                }
                let options = options.with_config(timeout, day);
                let builder = HttpBuilder::new()
                    .with_url(url)
                    .with_client_options(options);
                let store = builder.with_retry(once()).with_http_connector(Connector);
                Client {
                    objects: Arc::new(store.build()?),
                    pages: None,
                    origin: origin(protocol, ""), // its URL says all
                }
            }
        })
    }

    fn of_pages<S: ObjectStore + PaginatedListStore>(
        store: S,
        protocol: Protocol,
        said: String,
    ) -> Client {
        let store = Arc::new(store);
        Client {
            objects: store.clone(),
            pages: Some(store),
            origin: origin(protocol, &said),
        }
    }
}

/// The settings of these names, whether they were given or come from the environment. (A version of object_store may not know each.)
fn said(names: &[&str], value: impl Fn(&str) -> Option<String>) -> String {
    let values = names.iter().map(|name| value(name).unwrap_or_default());
    values.collect::<Vec<_>>().join("\0")
}

/// (An endpoint may have a password in it, so it is a hash.)
fn origin(protocol: Protocol, said: &str) -> String {
    format!("{:016x}", sum(format!("{protocol:?}\0{said}").as_bytes()))
}

/// Makes clients that note what servers answer.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> StoreResult<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Watched(client)))
    }
}

struct Watched(HttpClient);

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl HttpService for Watched {
    // What `async_trait` makes of `async fn call`.
    fn call<'service, 'call>(
        &'service self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'call>>
    where
        'service: 'call,
        Self: 'call,
    {
        Box::pin(async move {
            let host = request.uri().host().unwrap_or_default();
            let asked_for_credentials = gives_credentials(host).then(|| host.to_owned());
            note(Answer {
                asked_for_credentials: asked_for_credentials.clone(),
                ..Answer::default()
            });
            let response = self.0.execute(request).await?;
            let header = |name: &str| {
                let value = response.headers().get(name)?;
                Some(value.to_str().ok()?.to_owned())
            };
            note(Answer {
                status: Some(response.status().as_u16()),
                retry_after: header("retry-after"),
                date: header("date"),
                region: header("x-amz-bucket-region"),
                asked_for_credentials,
            });
            Ok(response)
        })
    }
}

/// (A request outside an attempt has no place for its answer.)
fn note(answer: Answer) {
    let _ = ANSWER.try_with(|place| *place.lock() = answer);
}

/// When the server sent its last answer to the task's attempt, as it says: seconds since 1970.
pub(super) fn date() -> Option<u64> {
    let text = ANSWER.try_with(|place| place.lock().date.clone());
    super::pace::date(&text.ok()??)
}

/// Whether a host is one that the clouds give credentials at.
fn gives_credentials(host: &str) -> bool {
    host.starts_with("169.254.")
        || host.starts_with("sts.")
        || [
            "metadata.google.internal",
            "metadata",
            "oauth2.googleapis.com",
            "accounts.google.com",
            "login.microsoftonline.com",
        ]
        .contains(&host)
}
