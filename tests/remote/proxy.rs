//! What stands between a client and a server, and does to their requests what networks do: with a seed, so that it does the same again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// It is answered some milliseconds later.
    Late,
    /// The connection is closed without an answer.
    Reset,
    /// The server is said to be busy: 503, with `Retry-After: 0`.
    Busy,
    /// It is said to have failed: 500.
    Broken,
    /// The connection is closed within the answer's head.
    CutHead,
    /// The connection is closed within the body.
    CutBody,
    /// The answer has fewer bytes than were asked for, and says so.
    TooShort,
    /// The answer says that it has more bytes than come. (For a whole object, it would say that the object is another one.)
    TooLong,
    /// What comes is no HTTP.
    Garbage,
    /// Nothing comes, and the connection stays open.
    Hang,
    /// The same, within the body.
    HangInBody,
}

impl Fault {
    pub(crate) const ALL: [Fault; 11] = [
        Fault::Late,
        Fault::Reset,
        Fault::Busy,
        Fault::Broken,
        Fault::CutHead,
        Fault::CutBody,
        Fault::TooShort,
        Fault::TooLong,
        Fault::Garbage,
        Fault::Hang,
        Fault::HangInBody,
    ];
}

/// Which faults there are, and for how many of a hundred requests.
struct Weather {
    faults: Vec<Fault>,
    in_a_hundred: u64,
}

struct Shared {
    server: SocketAddr,
    seed: u64,
    weather: Mutex<Weather>,
    requests: AtomicU64,
    lists: AtomicU64,
    made: Mutex<BTreeMap<Fault, u64>>,
    is_over: AtomicBool,
    /// Requests that hang wait here.
    over: (Mutex<bool>, Condvar),
}

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepts: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// Stands before a server. It only passes on, until it is [told](Proxy::faults) to do more.
    pub(crate) fn start(server: SocketAddr, seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server,
            seed,
            weather: Mutex::new(Weather {
                faults: Vec::new(),
                in_a_hundred: 0,
            }),
            requests: AtomicU64::new(0),
            lists: AtomicU64::new(0),
            made: Mutex::new(BTreeMap::new()),
            is_over: AtomicBool::new(false),
            over: (Mutex::new(false), Condvar::new()),
        });
        let of_thread = Arc::clone(&shared);
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        let accept = move || {
            for client in listener.incoming() {
                if of_thread.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let (client, shared) = (client.unwrap(), Arc::clone(&of_thread));
                let serve = move || {
                    // (A client that has gone is no failure.)
                    let _ = shared.serve(&client);
                    let _ = client.shutdown(Shutdown::Both);
                };
                named("proxied").spawn(serve).unwrap();
            }
        };
        let accepts = Some(named("proxy").spawn(accept).unwrap());
        Proxy {
            address,
            shared,
            accepts,
        }
    }

    /// From here on, so many of a hundred requests meet one of these faults.
    pub(crate) fn faults(&self, in_a_hundred: u64, faults: &[Fault]) {
        *self.shared.weather.lock().unwrap() = Weather {
            faults: faults.to_vec(),
            in_a_hundred,
        };
    }

    pub(crate) fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// How many requests asked for a list.
    pub(crate) fn lists(&self) -> u64 {
        self.shared.lists.load(Ordering::SeqCst)
    }

    /// How many requests met which fault.
    pub(crate) fn made(&self) -> BTreeMap<Fault, u64> {
        self.shared.made.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        *self.shared.over.0.lock().unwrap() = true;
        self.shared.over.1.notify_all();
        let _ = TcpStream::connect(self.address); // wakes it up
        self.accepts.take().unwrap().join().unwrap();
    }
}

/// The finalizer of SplitMix64.
fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The lines of a head, and what its body's length is.
fn head(reader: &mut impl BufRead) -> Option<(Vec<String>, Option<usize>)> {
    let (mut lines, mut length) = (Vec::new(), None);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() && !lines.is_empty() {
            return Some((lines, length));
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = Some(value.trim().parse().ok()?);
        }
        if !lower.starts_with("connection:") && !line.is_empty() {
            lines.push(line);
        }
    }
}

impl Shared {
    /// Passes on the requests of a connection; `None` when it is to be closed.
    fn serve(&self, client: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(client.try_clone().ok()?);
        loop {
            let (lines, length) = head(&mut reader)?;
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).ok()?;
            let number = self.requests.fetch_add(1, Ordering::SeqCst);
            let is_list = lines[0].contains("list-type=2")
                || lines[0].contains("comp=list")
                || lines[0].starts_with("PROPFIND");
            self.lists.fetch_add(u64::from(is_list), Ordering::SeqCst);
            let drawn = scramble(self.seed ^ scramble(number));
            let fault = {
                let weather = self.weather.lock().unwrap();
                let count = weather.faults.len() as u64;
                let meets = drawn % 100 < weather.in_a_hundred && count > 0;
                meets.then(|| weather.faults[(drawn / 100 % count) as usize])
            };
            if let Some(fault) = fault {
                *self.made.lock().unwrap().entry(fault).or_insert(0) += 1;
            }
            self.pass(client, &lines, &body, fault, drawn >> 32)?;
        }
    }

    fn hang(&self) {
        let mut over = self.over.0.lock().unwrap();
        while !*over {
            over = self.over.1.wait(over).unwrap();
        }
    }

    fn pass(
        &self,
        mut client: &TcpStream,
        lines: &[String],
        body: &[u8],
        fault: Option<Fault>,
        drawn: u64,
    ) -> Option<()> {
        match fault {
            Some(Fault::Late) => thread::sleep(Duration::from_millis(drawn % 40)),
            Some(Fault::Reset) => return None,
            Some(Fault::Hang) => {
                self.hang();
                return None;
            }
            Some(Fault::Busy) => {
                return client
                    .write_all(
                        b"HTTP/1.1 503 Slow Down\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
                    )
                    .ok();
            }
            Some(Fault::Broken) => {
                return client
                    .write_all(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")
                    .ok();
            }
            Some(Fault::Garbage) => {
                client
                    .write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
                    .ok()?;
                return None;
            }
            _ => {}
        }
        // One connection for each request: so the answer ends where the server closes.
        let mut server = TcpStream::connect(self.server).ok()?;
        server
            .set_read_timeout(Some(Duration::from_secs(20)))
            .ok()?;
        let request = format!("{}\r\nConnection: close\r\n\r\n", lines.join("\r\n"));
        server.write_all(request.as_bytes()).ok()?;
        server.write_all(body).ok()?;
        let mut reader = BufReader::new(server);
        let (answer, length) = head(&mut reader)?;
        let mut bytes = Vec::new();
        match length {
            _ if lines[0].starts_with("HEAD ") => {}
            Some(length) => _ = reader.take(length as u64).read_to_end(&mut bytes).ok()?,
            None => _ = reader.read_to_end(&mut bytes).ok()?,
        }
        let is_range = answer[0].contains(" 206");
        let part = if bytes.is_empty() {
            0
        } else {
            drawn as usize % bytes.len()
        };
        let said = |length: usize| {
            let kept = answer
                .iter()
                .filter(|line| !line.to_ascii_lowercase().starts_with("content-length:"));
            let kept: Vec<&str> = kept.map(String::as_str).collect();
            format!("{}\r\nContent-Length: {length}\r\n\r\n", kept.join("\r\n"))
        };
        let whole = format!("{}\r\n\r\n", answer.join("\r\n"));
        match fault {
            Some(Fault::CutHead) => {
                client
                    .write_all(&whole.as_bytes()[..whole.len() / 2])
                    .ok()?;
                None
            }
            Some(Fault::TooShort) if is_range => {
                client.write_all(said(part).as_bytes()).ok()?;
                client.write_all(&bytes[..part]).ok()
            }
            Some(Fault::TooLong) if is_range => {
                client
                    .write_all(said(bytes.len() + 1 + part).as_bytes())
                    .ok()?;
                client.write_all(&bytes).ok()?;
                None
            }
            Some(Fault::CutBody | Fault::TooShort | Fault::TooLong) => {
                client.write_all(whole.as_bytes()).ok()?;
                client.write_all(&bytes[..part]).ok()?;
                None
            }
            Some(Fault::HangInBody) => {
                client.write_all(whole.as_bytes()).ok()?;
                client.write_all(&bytes[..part]).ok()?;
                self.hang();
                None
            }
            _ => {
                client.write_all(whole.as_bytes()).ok()?;
                client.write_all(&bytes).ok()?;
                length.map(|_| ())
            }
        }
    }
}
