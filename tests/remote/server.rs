//! A server on the loopback that fails as it is told to: objects of a bucket by S3's protocol, which are files of a web server, too.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::store::RemoteStore;

/// What the server does with a request.
#[derive(Debug, Clone, Default)]
pub(crate) enum Act {
    /// It answers.
    #[default]
    Answer,
    /// It answers, but not before this has passed.
    Late(Duration),
    /// It closes the connection without having read all of the request.
    Reset,
    /// It answers nothing, until it is dropped.
    Hang,
    /// It sends so many bytes of the body, and nothing more until it is dropped.
    HangAfter(usize),
    /// It sends so many bytes of the body, and closes the connection.
    CutAfter(usize),
    /// It answers with that status, headers and body.
    Refuse(u16, &'static str, &'static str),
    /// It answers with all of the object, whatever the range.
    IgnoreRange,
    /// It says of its bytes that they are others.
    WrongRange,
    /// It looks at no condition.
    IgnoreCondition,
    /// It sends more than the range, and says so.
    TooMuch,
}

/// A request, as the server saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    /// Behind the first slash, with the query.
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) at: Instant,
}

type Script = Box<dyn FnMut(&Seen) -> Act + Send>;

struct State {
    /// With their ETags.
    objects: BTreeMap<String, (Vec<u8>, String)>,
    script: Script,
    seen: Vec<Seen>,
    /// How many keys a page of a listing has.
    page: usize,
    /// What time it says that it is.
    date: Option<String>,
    is_over: bool,
}

pub(crate) struct Server {
    address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
    is_over: Arc<AtomicBool>,
    accepts: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Starts a server of these objects.
    pub(crate) fn new(objects: &[(&str, &[u8])]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut all = BTreeMap::new();
        for (key, bytes) in objects {
            all.insert((*key).to_owned(), (bytes.to_vec(), "\"v1\"".to_owned()));
        }
        let state = State {
            objects: all,
            script: Box::new(|_| Act::Answer),
            seen: Vec::new(),
            page: 1_000,
            date: None,
            is_over: false,
        };
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (of_thread, ends) = (Arc::clone(&state), Arc::clone(&is_over));
        let accept = move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let (stream, state) = (stream.unwrap(), Arc::clone(&of_thread));
                // (An answer is written in two pieces, of which the second would wait 40 ms for the first one's acknowledgement.)
                stream.set_nodelay(true).unwrap();
                let named = thread::Builder::new().name("connection".to_owned());
                named.spawn(move || serve(stream, &state)).unwrap();
            }
        };
        let accepts = thread::Builder::new()
            .name("server".to_owned())
            .spawn(accept);
        Server {
            address,
            state,
            is_over,
            accepts: Some(accepts.unwrap()),
        }
    }

    /// What becomes of the requests from here on.
    pub(crate) fn script(&self, script: impl FnMut(&Seen) -> Act + Send + 'static) {
        self.state.0.lock().unwrap().script = Box::new(script);
    }

    /// What becomes of the next requests, one after the other; all others are answered.
    pub(crate) fn then(&self, acts: impl IntoIterator<Item = Act>) {
        let mut acts: Vec<Act> = acts.into_iter().collect();
        acts.reverse();
        self.script(move |_| acts.pop().unwrap_or_default());
    }

    pub(crate) fn put(&self, key: &str, bytes: &[u8], tag: &str) {
        let object = (bytes.to_vec(), tag.to_owned());
        self.state
            .0
            .lock()
            .unwrap()
            .objects
            .insert(key.to_owned(), object);
    }

    /// What time the server says that it is. By default, it does not.
    pub(crate) fn date(&self, date: &str) {
        self.state.0.lock().unwrap().date = Some(date.to_owned());
    }

    pub(crate) fn page(&self, keys: usize) {
        self.state.0.lock().unwrap().page = keys;
    }

    /// The requests since this was last asked.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.0.lock().unwrap().seen)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its bucket `bucket`, as S3's.
    pub(crate) fn bucket(&self, prefix: &str) -> RemoteStore {
        open_bucket(self.address, prefix)
    }

    /// The same objects, as a web server's.
    pub(crate) fn web(&self) -> RemoteStore {
        RemoteStore::open(&format!("http://{}/bucket", self.address)).unwrap()
    }
}

pub(crate) const KEY: &str = "THE-KEY-OF-THE-TEST";
pub(crate) const SECRET: &str = "the secret of the test";

pub(crate) fn open_bucket(address: SocketAddr, prefix: &str) -> RemoteStore {
    let endpoint = format!("http://{address}");
    let options = [
        ("aws_endpoint", &*endpoint),
        ("aws_allow_http", "true"),
        ("aws_access_key_id", KEY),
        ("aws_secret_access_key", SECRET),
        ("aws_region", "us-east-1"),
    ];
    RemoteStore::open_with(&format!("s3://bucket/{prefix}"), options).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.state.0.lock().unwrap().is_over = true;
        self.state.1.notify_all();
        let _ = TcpStream::connect(self.address); // wakes it up
        self.accepts.take().unwrap().join().unwrap();
    }
}

/// Answers the requests of a connection.
fn serve(stream: TcpStream, state: &(Mutex<State>, Condvar)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(seen) = request(&mut reader) {
        let act = {
            let mut state = state.0.lock().unwrap();
            state.seen.push(seen.clone());
            (state.script)(&seen)
        };
        if !answer(&stream, state, &seen, act) {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}

fn request(reader: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    reader.take(length).read_to_end(&mut Vec::new()).ok()?;
    Some(Seen {
        method,
        path: path.trim_start_matches('/').to_owned(),
        headers,
        at: Instant::now(),
    })
}

/// Returns whether the connection is used further.
fn answer(stream: &TcpStream, state: &(Mutex<State>, Condvar), seen: &Seen, act: Act) -> bool {
    let hang = || {
        let mut guard = state.0.lock().unwrap();
        while !guard.is_over {
            guard = state.1.wait(guard).unwrap();
        }
    };
    let mut stop = None;
    match act {
        Act::Reset => return false,
        Act::Hang => {
            hang();
            return false;
        }
        Act::Refuse(status, headers, body) => {
            let head = format!("{headers}Content-Length: {}\r\n", body.len());
            return send(stream, seen, status, &head, body.as_bytes(), None);
        }
        Act::Late(delay) => thread::sleep(delay),
        Act::HangAfter(bytes) | Act::CutAfter(bytes) => stop = Some(bytes),
        _ => {}
    }
    let state = state.0.lock().unwrap();
    let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
    if query.contains("list-type=2") {
        let list = list(&state, query);
        drop(state);
        let head = format!(
            "Content-Type: application/xml\r\nContent-Length: {}\r\n",
            list.len()
        );
        let goes_on = send(stream, seen, 200, &head, list.as_bytes(), stop);
        if matches!(act, Act::HangAfter(_)) {
            hang();
        }
        return goes_on && stop.is_none();
    }
    let key = unescaped(path.strip_prefix("bucket/").unwrap_or_default());
    let Some((bytes, tag)) = state.objects.get(&key).cloned() else {
        drop(state);
        let body = "<Error><Code>NoSuchKey</Code></Error>";
        return send(
            stream,
            seen,
            404,
            &format!("Content-Length: {}\r\n", body.len()),
            body.as_bytes(),
            None,
        );
    };
    let date = state.date.clone();
    drop(state);
    let is_other = seen
        .headers
        .get("if-match")
        .is_some_and(|asked| *asked != tag);
    if is_other && !matches!(act, Act::IgnoreCondition) {
        return send(stream, seen, 412, "Content-Length: 0\r\n", b"", None);
    }
    let size = bytes.len();
    let range = seen
        .headers
        .get("range")
        .filter(|_| !matches!(act, Act::IgnoreRange));
    let range = range.map(|range| {
        let (from, to) = range
            .strip_prefix("bytes=")
            .unwrap()
            .split_once('-')
            .unwrap();
        (from.parse::<usize>().unwrap(), to.parse::<usize>().unwrap())
    });
    let (status, of_range, body) = match range {
        None => (200, String::new(), bytes),
        Some((from, _)) if from >= size => {
            return send(stream, seen, 416, "Content-Length: 0\r\n", b"", None);
        }
        Some((from, to)) => {
            let to = to.min(size - 1);
            let shift = usize::from(matches!(act, Act::WrongRange));
            let more = if matches!(act, Act::TooMuch) {
                7.min(size - 1 - to)
            } else {
                0
            };
            (
                206,
                format!(
                    "Content-Range: bytes {}-{}/{size}\r\n",
                    from + shift,
                    to + shift
                ),
                bytes[from..=to + more].to_vec(),
            )
        }
    };
    let tag = match &*tag {
        "" => tag,
        _ => format!("ETag: {tag}\r\n"),
    };
    let date = date.map_or(String::new(), |date| format!("Date: {date}\r\n"));
    let head = format!(
        "{of_range}{tag}{date}Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: {}\r\n",
        body.len()
    );
    let goes_on = send(stream, seen, status, &head, &body, stop);
    if matches!(act, Act::HangAfter(_)) {
        hang();
    }
    goes_on && stop.is_none()
}

fn send(
    mut stream: &TcpStream,
    seen: &Seen,
    status: u16,
    head: &str,
    body: &[u8],
    stop: Option<usize>,
) -> bool {
    let body = if seen.method == "HEAD" { b"" } else { body };
    let body = &body[..stop.unwrap_or(usize::MAX).min(body.len())];
    let head = format!("HTTP/1.1 {status} Said\r\n{head}\r\n");
    stream.write_all(head.as_bytes()).is_ok() && stream.write_all(body).is_ok()
}

/// A page of a listing, as S3 has them.
fn list(state: &State, query: &str) -> String {
    let of = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(key, _)| *key == name)
            .map(|(_, value)| unescaped(&value.replace('+', " ")))
    };
    let (prefix, token) = (of("prefix").unwrap_or_default(), of("continuation-token"));
    let keys = state
        .objects
        .iter()
        .filter(|(key, _)| key.starts_with(&prefix));
    let mut keys = keys.skip_while(|(key, _)| token.as_ref().is_some_and(|token| *key <= token));
    let page: Vec<_> = keys.by_ref().take(state.page).collect();
    let mut text = "<?xml version=\"1.0\"?><ListBucketResult>".to_owned();
    for (key, (bytes, tag)) in &page {
        let tag = tag.replace('"', "&quot;");
        text += &format!(
            "<Contents><Key>{key}</Key><LastModified>1994-11-06T08:49:37.000Z</LastModified><ETag>{tag}</ETag><Size>{}</Size></Contents>",
            bytes.len()
        );
    }
    if keys.next().is_some() {
        let last = page.last().unwrap().0;
        text += &format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
        );
    }
    text + "</ListBucketResult>"
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut left = text.bytes();
    while let Some(byte) = left.next() {
        if byte == b'%' {
            let mut digit = || char::from(left.next().unwrap()).to_digit(16).unwrap();
            bytes.push((digit() * 16 + digit()) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}
