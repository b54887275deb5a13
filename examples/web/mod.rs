//! A web server on the loopback that is as far away as a bucket: it serves the files of a folder, in ranges, and thinks before each answer.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) struct Server {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Server {
    /// Serves a folder for as long as the program runs.
    pub(crate) fn start(folder: &Path, latency: Duration) -> io::Result<Server> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let requests = Arc::new(AtomicUsize::new(0));
        let (folder, counted) = (folder.to_owned(), Arc::clone(&requests));
        let accept = move || {
            for connection in listener.incoming().flatten() {
                let (folder, counted) = (folder.clone(), Arc::clone(&counted));
                let answer = move || serve(&connection, &folder, latency, &counted);
                if named("connection").spawn(answer).is_err() {
                    return; // there are no more threads
                }
            }
        };
        named("web server").spawn(accept)?;
        Ok(Server { address, requests })
    }

    /// The URL of a file.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// How many requests there were since this was asked last.
    pub(crate) fn requests(&self) -> usize {
        self.requests.swap(0, Ordering::Relaxed)
    }
}

fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.to_owned())
}

/// Answers the requests of a connection, until it is closed.
fn serve(
    mut connection: &TcpStream,
    folder: &Path,
    latency: Duration,
    requests: &AtomicUsize,
) -> io::Result<()> {
    let mut reader = BufReader::new(connection);
    loop {
        let (mut line, mut range) = (String::new(), None);
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split_whitespace();
        let method = words.next().unwrap_or_default().to_owned();
        let name = words.next().unwrap_or("/").trim_start_matches('/');
        let path: PathBuf = folder.join(name);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let header = header.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(bytes) = header.strip_prefix("range: bytes=") {
                range = bytes
                    .split_once('-')
                    .and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
            }
        }
        requests.fetch_add(1, Ordering::Relaxed);
        thread::sleep(latency);
        if method != "GET" && method != "HEAD" {
            connection
                .write_all(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")?;
            continue; // (It lists no folder.)
        }
        let Ok(mut file) = File::open(path) else {
            connection.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let size = file.metadata()?.len();
        let whole = (0, size.saturating_sub(1));
        let (from, to): (u64, u64) = range.unwrap_or(whole);
        let bytes = (to.min(whole.1) + 1).saturating_sub(from);
        let status = match range {
            Some(_) => format!("206 Partial Content\r\nContent-Range: bytes {from}-{to}/{size}"),
            None => "200 OK".to_owned(),
        };
        // (An ETag says which version it is: what is kept on a disk needs one.)
        let head =
            format!("HTTP/1.1 {status}\r\nETag: \"{size}\"\r\nContent-Length: {bytes}\r\n\r\n");
        connection.write_all(head.as_bytes())?;
        if method == "GET" {
            file.seek(SeekFrom::Start(from))?;
            io::copy(&mut file.take(bytes), &mut connection)?;
        }
    }
}
