//! One suite for several servers: ours, which every run of the tests starts, and those of others (s3s-fs, moto, nginx), which
//! `ci/servers.sh` installs. Shards are read from them as they are, and through a [`Proxy`] that fails.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use pinfeed::error::Temporary;
use pinfeed::iterable::IterableDataset;
use pinfeed::loader::{LoaderState, World};
use pinfeed::store::{RemoteStore, Store, StoreError, StoreErrorKind};
use pinfeed::webdataset::{WebDataset, WebSample};
use pinfeed::{BoxError, DataLoader, SampleRng};

use super::proxy::{Fault, Proxy};
use super::server::{KEY, SECRET, Server, open_bucket};

const SHARDS: u64 = 6;
const SAMPLES: u64 = 20;

/// How a server is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    S3,
    /// Google Cloud Storage's, whose XML is S3's.
    Google,
    Azure,
    /// It is a web server.
    Web,
}

/// Azurite's account and key, which are the same everywhere.
const ACCOUNT: &str = "devstoreaccount1";
const ACCOUNT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A server that has some objects.
struct Running {
    address: SocketAddr,
    protocol: Protocol,
    process: Option<Child>,
    _ours: Option<Server>,
    root: Option<tempfile::TempDir>,
}

impl Running {
    /// The server itself, or what stands before it.
    fn store(&self, address: SocketAddr) -> RemoteStore {
        let store = match self.protocol {
            Protocol::S3 => open_bucket(address, ""),
            Protocol::Google => {
                let base = format!("http://{address}");
                let options = [
                    ("google_base_url", &*base),
                    ("google_skip_signature", "true"),
                    ("allow_http", "true"),
                ];
                RemoteStore::open_with("gs://bucket", options).unwrap()
            }
            Protocol::Azure => {
                let endpoint = format!("http://{address}/{ACCOUNT}");
                let options = [
                    ("azure_storage_endpoint", &*endpoint),
                    ("azure_storage_account_name", ACCOUNT),
                    ("azure_storage_account_key", ACCOUNT_KEY),
                    ("allow_http", "true"),
                ];
                RemoteStore::open_with("az://bucket", options).unwrap()
            }
            Protocol::Web => RemoteStore::open(&format!("http://{address}/bucket")).unwrap(),
        };
        store
            .with_silence(Duration::from_millis(500))
            .with_timeout(Duration::from_secs(60))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill(); // this one, by its number
            let _ = process.wait();
        }
    }
}

/// `train/00N.tar` and `packed/00N.tar.gz`: shards of the same samples.
fn objects() -> Vec<(String, Vec<u8>)> {
    let mut objects = Vec::new();
    for shard in 0..SHARDS {
        let mut archive = tar::Builder::new(Vec::new());
        for sample in shard * SAMPLES..(shard + 1) * SAMPLES {
            for (field, contents) in [
                ("cls", sample.to_string().into_bytes()),
                ("bin", noise(sample)),
            ] {
                let mut header = tar::Header::new_gnu();
                header.set_size(contents.len() as u64);
                header.set_mode(0o644);
                archive
                    .append_data(&mut header, format!("{sample:05}.{field}"), &*contents)
                    .unwrap();
            }
        }
        let archive = archive.into_inner().unwrap();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&archive).unwrap();
        objects.push((
            format!("packed/{shard:03}.tar.gz"),
            encoder.finish().unwrap(),
        ));
        objects.push((format!("train/{shard:03}.tar"), archive));
    }
    objects
}

fn noise(sample: u64) -> Vec<u8> {
    let mut state = sample.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..2_000 + sample as usize % 700).map(|_| next()).collect()
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// Starts a program that is to listen there.
fn started(command: &mut Command, address: SocketAddr) -> Child {
    let mut process = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(
            process.try_wait().unwrap().is_none(),
            "{command:?} has ended"
        );
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{command:?} does not listen"
        );
        thread::sleep(Duration::from_millis(20));
    }
    process
}

fn binary(variable: &str) -> PathBuf {
    let named = std::env::var_os(variable);
    named
        .unwrap_or_else(|| panic!("{variable} names the server: ci/servers.sh sets it"))
        .into()
}

/// Puts the objects by object_store's own client.
fn put(address: SocketAddr) {
    let client = AmazonS3Builder::new()
        .with_bucket_name("bucket")
        .with_endpoint(format!("http://{address}"))
        .with_allow_http(true)
        .with_access_key_id(KEY)
        .with_secret_access_key(SECRET)
        .build()
        .unwrap();
    put_by(&client);
}

fn put_by(client: &dyn ObjectStore) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (key, bytes) in objects() {
        let path = Path::parse(key).unwrap();
        runtime
            .block_on(client.put(&path, PutPayload::from(bytes)))
            .unwrap();
    }
}

fn ours() -> Running {
    let objects = objects();
    let all: Vec<(&str, &[u8])> = objects
        .iter()
        .map(|(key, bytes)| (key.as_str(), bytes.as_slice()))
        .collect();
    let server = Server::new(&all);
    Running {
        address: server.address(),
        protocol: Protocol::S3,
        process: None,
        _ours: Some(server),
        root: None,
    }
}

fn s3s_fs() -> Running {
    let (root, address) = (tempfile::tempdir().unwrap(), free());
    std::fs::create_dir(root.path().join("bucket")).unwrap();
    let mut command = Command::new(binary("PINFEED_S3S_FS"));
    command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
    command
        .args(["--access-key", KEY, "--secret-key", SECRET])
        .arg(root.path());
    let process = Some(started(&mut command, address));
    put(address);
    Running {
        address,
        protocol: Protocol::S3,
        process,
        _ours: None,
        root: Some(root),
    }
}

/// Asks without credentials.
fn ask(address: SocketAddr, what: &str, body: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!(
        "{what} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    let is_done = answer.contains(" 200 ") || answer.contains(" 204 ");
    assert!(is_done, "{answer}");
}

fn moto() -> Running {
    let address = free();
    let mut command = Command::new(binary("PINFEED_MOTO"));
    command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
    let process = Some(started(&mut command, address));
    ask(address, "PUT /bucket", "");
    put(address);
    Running {
        address,
        protocol: Protocol::S3,
        process,
        _ours: None,
        root: None,
    }
}

/// moto answers Google's requests, which are S3's, too. It has no generations, and knows nothing of Google's signatures.
fn moto_for_google() -> Running {
    let mut running = moto();
    let everybody = r#"{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": ["arn:aws:s3:::bucket", "arn:aws:s3:::bucket/*"]}]}"#;
    ask(running.address, "PUT /bucket?policy", everybody);
    running.protocol = Protocol::Google;
    running
}

/// `ci/servers.sh` installs it with the client that makes the container, which object_store's cannot.
fn azurite() -> Running {
    let (root, address) = (tempfile::tempdir().unwrap(), free());
    let folder = binary("PINFEED_AZURITE");
    let mut command = Command::new(folder.join("node_modules/.bin/azurite-blob"));
    command.args([
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        &address.port().to_string(),
    ]);
    command.args(["--skipApiVersionCheck", "--silent", "--location"]);
    let process = Some(started(command.arg(root.path()), address));
    let endpoint = format!("http://{address}/{ACCOUNT}");
    let script = format!(
        "const blob = require('@azure/storage-blob');
         const key = new blob.StorageSharedKeyCredential('{ACCOUNT}', '{ACCOUNT_KEY}');
         new blob.BlobServiceClient('{endpoint}', key).createContainer('bucket');"
    );
    let made = Command::new("node")
        .args(["-e", &script])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let client = MicrosoftAzureBuilder::new()
        .with_account(ACCOUNT)
        .with_access_key(ACCOUNT_KEY)
        .with_container_name("bucket")
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .build()
        .unwrap();
    put_by(&client);
    Running {
        address,
        protocol: Protocol::Azure,
        process,
        _ours: None,
        root: Some(root),
    }
}

fn nginx() -> Running {
    let (root, address) = (tempfile::tempdir().unwrap(), free());
    let at = root.path().display();
    for (key, bytes) in objects() {
        let file = root.path().join("www/bucket").join(key);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {at}/{what};\n"))
        .concat();
    let configuration = format!(
        "daemon off;\nmaster_process off;\npid {at}/pid;\nerror_log {at}/log;\nevents {{ worker_connections 256; }}\n\
         http {{\naccess_log off;\n{temporary}limit_conn_zone $binary_remote_addr zone=few:1m;\n\
         server {{\nlisten {address};\nroot {at}/www;\nautoindex on;\n\
         location /few/ {{ alias {at}/www/bucket/; limit_conn few 2; limit_rate 200k; }}\n\
         location /denied/ {{ return 403; }}\n}}\n}}\n"
    );
    let file = root.path().join("nginx.conf");
    std::fs::write(&file, configuration).unwrap();
    let mut command = Command::new(binary("PINFEED_NGINX"));
    command
        .arg("-e")
        .arg(root.path().join("log"))
        .arg("-p")
        .arg(root.path())
        .arg("-c")
        .arg(&file);
    Running {
        address,
        protocol: Protocol::Web,
        process: Some(started(&mut command, address)),
        _ours: None,
        root: Some(root),
    }
}

fn number(sample: WebSample<'_>, _: &mut SampleRng) -> Result<u64, BoxError> {
    let number = sample.number("cls")?;
    match sample.field("bin")? == noise(number) {
        true => Ok(number),
        false => Err("its bytes are others".into()),
    }
}

fn each_once(mut samples: Vec<u64>) {
    samples.sort_unstable();
    assert!(
        samples.iter().copied().eq(0..SHARDS * SAMPLES),
        "{samples:?}"
    );
}

/// An epoch of the indexed shards, on two ranks, of which one goes on alone.
fn indexed(store: &Arc<RemoteStore>) {
    let build = |rank, ranks| {
        let shards =
            WebDataset::builder(Arc::clone(store), "train/{000..005}.tar").extent_bytes(16 << 10);
        let data = shards.field("cls").field("bin").build(number).unwrap();
        let builder = DataLoader::builder(data)
            .global_batch_size(8)
            .shuffle(true)
            .seed(3)
            .num_workers(2);
        let builder = builder
            .world(World::new(rank, ranks).unwrap())
            .retry(3, Duration::from_millis(10));
        builder
            .collate_fn(|samples, _| Ok(samples))
            .build()
            .unwrap()
    };
    let (mut given, mut state) = (Vec::new(), LoaderState::default());
    for rank in 0..2 {
        let loader = build(rank, 2);
        loader
            .epoch(0)
            .take(6)
            .for_each(|batch| given.extend(batch.unwrap()));
        state = loader.state();
    }
    let alone = build(0, 1);
    alone
        .resume(0..1, &state)
        .unwrap()
        .flatten()
        .for_each(|batch| given.extend(batch.unwrap()));
    each_once(given);
}

fn streamed(
    store: &Arc<RemoteStore>,
    rank: usize,
    ranks: usize,
) -> DataLoader<Vec<u64>, pinfeed::loader::Iterable> {
    let shards =
        WebDataset::builder(Arc::clone(store), "packed/{000..005}.tar.gz").extent_bytes(10_000);
    let stream = shards
        .stream(number)
        .unwrap()
        .with_open_shards(2)
        .shuffle(15);
    let builder = DataLoader::iterable(stream)
        .batch_size(4)
        .seed(3)
        .num_workers(1);
    let builder = builder.world(World::new(rank, ranks).unwrap());
    builder
        .collate_fn(|samples, _| Ok(samples))
        .build()
        .unwrap()
}

/// An epoch of a stream of the compressed ones, on three ranks, of which two go on.
fn handed_over(store: &Arc<RemoteStore>) {
    let (mut given, mut states) = (Vec::new(), Vec::new());
    for rank in 0..3 {
        let loader = streamed(store, rank, 3);
        loader
            .epoch(0)
            .take(3)
            .for_each(|batch| given.extend(batch.unwrap()));
        states.push(loader.state());
    }
    for rank in 0..2 {
        let loader = streamed(store, rank, 2);
        let state = loader.hand_over(&states).unwrap();
        loader
            .resume(0..1, &state)
            .unwrap()
            .flatten()
            .for_each(|batch| given.extend(batch.unwrap()));
    }
    each_once(given);
}

fn what_was_put_is_read(start: fn() -> Running) {
    let running = start();
    let store = running.store(running.address);
    for (key, bytes) in objects() {
        let object = store.object(&key).unwrap();
        assert_eq!(
            (object.bytes, object.version.is_some()),
            (bytes.len() as u64, true),
            "{key}"
        );
        assert!(store.read(&object, 0..object.bytes).unwrap() == bytes);
        let (from, to) = (object.bytes / 3, object.bytes - 1);
        assert!(store.read(&object, from..to).unwrap() == bytes[from as usize..to as usize]);
    }
    if running.protocol != Protocol::Web {
        let keys: BTreeSet<String> = store
            .list("")
            .unwrap()
            .into_iter()
            .map(|object| object.key)
            .collect();
        assert!(
            keys.into_iter().eq(objects()
                .into_iter()
                .map(|(key, _)| key)
                .collect::<BTreeSet<_>>())
        );
    } else {
        // Its page that lists a folder is for people.
        let error = store.list("train").unwrap_err().to_string();
        assert!(error.contains("by their keys"), "{error}");
    }
    let error = store.object("train/none.tar").unwrap_err();
    let kind = error.downcast_ref::<StoreError>().map(StoreError::kind);
    assert_eq!(kind, Some(StoreErrorKind::NotFound), "{error}");
}

fn each_sample_comes_once(start: fn() -> Running) {
    let running = start();
    let store = Arc::new(running.store(running.address));
    indexed(&store);
    handed_over(&store);
}

/// One listing for each data set: not one for each worker, epoch or shard.
fn a_data_set_lists_once(start: fn() -> Running) {
    let running = start();
    let proxy = Proxy::start(running.address, 0);
    let store = Arc::new(running.store(proxy.address));
    let shards = WebDataset::builder(Arc::clone(&store), "train/{000..005}.tar");
    let data = shards.extent_bytes(16 << 10).build(number).unwrap();
    let loader = DataLoader::builder(data)
        .batch_size(8)
        .shuffle(true)
        .num_workers(3);
    let loader = loader.collate_fn(|samples, _| Ok(samples)).build().unwrap();
    for epoch in loader.epochs(0..2) {
        each_once(epoch.flat_map(Result::unwrap).collect());
    }
    assert_eq!(proxy.lists(), 1);
    let loader = streamed(&store, 0, 1);
    for epoch in loader.epochs(0..2) {
        each_once(epoch.flat_map(Result::unwrap).collect());
    }
    assert_eq!(proxy.lists(), 2);
}

fn faults_cost_time_and_no_sample(start: fn() -> Running) {
    let log = log();
    let running = start();
    for seed in 1..=2 {
        let proxy = Proxy::start(running.address, seed);
        proxy.faults(20, &Fault::ALL);
        let store = Arc::new(
            running
                .store(proxy.address)
                .with_silence(Duration::from_millis(250)),
        );
        // (Until a server has answered once, there are four attempts.)
        while store.object("train/000.tar").is_err() {}
        indexed(&store);
        handed_over(&store);
        let made = proxy.made();
        assert!(
            made.len() > 6,
            "seed {seed}: {made:?}, of {} requests",
            proxy.requests()
        );
        assert!(store.stats().retried > 10);
    }
    is_clean(&log.lock().unwrap());
}

/// Where a server stays away, each error says so, and says that it may go away; then the run goes on where it was.
fn a_server_that_goes_away_is_an_error_and_the_run_goes_on(start: fn() -> Running) {
    let log = log();
    let running = start();
    for (seed, fault) in (1..).zip([Fault::Hang, Fault::Reset, Fault::CutBody, Fault::Garbage]) {
        let proxy = Proxy::start(running.address, seed);
        let store = running
            .store(proxy.address)
            .with_attempts(2)
            .with_silence(Duration::from_millis(400));
        let store = Arc::new(store.with_timeout(Duration::from_secs(5)));
        let expected: Vec<u64> = {
            let calm = Arc::new(running.store(running.address));
            streamed(&calm, 0, 1)
                .epoch(0)
                .flat_map(Result::unwrap)
                .collect()
        };
        let loader = streamed(&store, 0, 1);
        let mut epoch = loader.epoch(0);
        let mut given: Vec<u64> = epoch.by_ref().take(2).flat_map(Result::unwrap).collect();
        proxy.faults(100, &[fault]);
        let (mut state, mut errors) = (loader.state(), Vec::new());
        let mut waited = given.clone();
        while errors.len() < 3 {
            match epoch.next() {
                Some(Ok(samples)) => {
                    assert_eq!(samples.len(), 4);
                    waited.extend(&samples);
                    given.extend(samples);
                    state = loader.state();
                }
                Some(Err(error)) => errors.push(error),
                None => panic!("{fault:?}: the epoch ended with {} errors", errors.len()),
            }
            // An error is in no sample's place.
            assert_eq!(loader.state(), state, "{fault:?}");
        }
        assert!(!errors.is_empty(), "{fault:?}");
        for error in &errors {
            let text = format!("{error} {error:?}");
            assert!(
                text.contains("packed/00") && text.contains(".tar.gz"),
                "{text}"
            );
            let pinfeed::Error::Sample(_, cause) = error else {
                panic!("{text}")
            };
            assert!(cause.is::<Temporary>(), "{text}");
            is_clean(&text);
        }
        proxy.faults(0, &[]);
        // A program that waits has the rest, and so has one that ended at an error. (Some more were made ahead.)
        for batch in epoch {
            waited.extend(batch.unwrap_or_default());
        }
        assert!(waited == expected, "{fault:?}");
        let again = streamed(&store, 0, 1);
        again
            .resume(0..1, &state)
            .unwrap()
            .flatten()
            .for_each(|batch| given.extend(batch.unwrap()));
        assert!(given == expected, "{fault:?}");
        each_once(given);
    }
    is_clean(&log.lock().unwrap());
}

/// What the process has logged, at every level.
fn log() -> &'static Mutex<String> {
    struct Logger;

    static TEXT: OnceLock<Mutex<String>> = OnceLock::new();

    impl log::Log for Logger {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            if let Some(text) = TEXT.get() {
                *text.lock().unwrap() += &format!("{}: {}\n", record.target(), record.args());
            }
        }

        fn flush(&self) {}
    }

    let text = TEXT.get_or_init(Mutex::default);
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
    }
    text
}

/// Neither a credential nor a signature is in a text.
fn is_clean(text: &str) {
    for secret in [
        KEY,
        SECRET,
        ACCOUNT_KEY,
        "SharedKey",
        "AWS4-HMAC-SHA256",
        "Signature=",
        "X-Amz-Credential",
    ] {
        let found = text.lines().find(|line| line.contains(secret));
        assert!(found.is_none(), "{secret}: {found:?}");
    }
}

macro_rules! suite {
    ($server:ident, $($ignored:meta)?) => {
        mod $server {
            suite!(tests super::$server, [$($ignored)?]: what_was_put_is_read, each_sample_comes_once, a_data_set_lists_once, faults_cost_time_and_no_sample,
                a_server_that_goes_away_is_an_error_and_the_run_goes_on);
        }
    };
    (tests $start:path, $ignored:tt: $($test:ident),*) => { $(suite!(test $start, $ignored, $test);)* };
    (test $start:path, [$($ignored:meta)?], $test:ident) => {
        #[test]
        $(#[$ignored])?
        fn $test() {
            super::$test($start);
        }
    };
}

suite!(ours,);
suite!(s3s_fs, ignore = "needs s3s-fs: ci/servers.sh");
suite!(moto, ignore = "needs moto: ci/servers.sh");
suite!(moto_for_google, ignore = "needs moto: ci/servers.sh");
suite!(azurite, ignore = "needs Azurite: ci/servers.sh");
suite!(nginx, ignore = "needs nginx: ci/servers.sh");

#[test]
#[ignore = "needs nginx: ci/servers.sh"]
fn a_server_with_few_connections_and_little_bandwidth_is_waited_for() {
    let running = nginx();
    let store = RemoteStore::open(&format!("http://{}/few", running.address)).unwrap();
    let store = Arc::new(store);
    handed_over(&store);
    indexed(&store);
    assert!(
        store.stats().retried > 0,
        "of {} requests, none was refused",
        store.stats().requests
    );
}

#[test]
#[ignore = "needs nginx: ci/servers.sh"]
fn what_a_web_server_denies_says_so() {
    let running = nginx();
    let store = RemoteStore::open(&format!("http://{}/denied", running.address)).unwrap();
    let error = store.object("000.tar").unwrap_err();
    let kind = error.downcast_ref::<StoreError>().map(StoreError::kind);
    assert_eq!(kind, Some(StoreErrorKind::Denied), "{error}");
    // One that is replaced while a run reads it.
    let store = running.store(running.address);
    let object = store.object("train/000.tar").unwrap();
    let file = running
        .root
        .as_ref()
        .unwrap()
        .path()
        .join("www/bucket/train/000.tar");
    std::fs::write(file, vec![0; 5_000]).unwrap();
    let error = store.read(&object, 0..512).unwrap_err();
    let kind = error.downcast_ref::<StoreError>().map(StoreError::kind);
    assert_eq!(kind, Some(StoreErrorKind::Changed), "{error}");
}
