//! A real S3 server on the loopback, whose answers come late: `s3s-fs`, and a relay in front of it that holds each request.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::args::cores;

const BUCKET: &str = "bucket";

/// What requests are signed with. The peers have them, too.
pub const KEY: &str = "pinfeed";
pub const SECRET: &str = "pinfeed-secret";

/// How long the server may take to listen.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// The server, with a folder's files in its bucket. It is stopped, and its folder removed, when this is dropped.
pub struct Served {
    processes: Vec<Child>,
    root: PathBuf,
    relay: SocketAddr,
}

impl Served {
    /// Starts so many servers of one bucket, which connections go to in turns, and puts a folder's files there, those of its folders too. The
    /// bucket is a folder of its own beside the given one.
    pub fn start(server: &Path, count: usize, folder: &Path, latency: Duration) -> Outcome<Served> {
        let root = folder.with_extension(format!("served-{}", std::process::id()));
        fs::create_dir_all(root.join(BUCKET))?;
        // Without keys, it takes requests that are not signed.
        let (mut putting, address) = listening(Command::new(server).arg(&root))?;
        let put = put_all(folder, address);
        putting.kill()?;
        putting.wait()?;
        put?;
        let (mut processes, mut addresses) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut command = Command::new(server);
            command
                .args(["--access-key", KEY, "--secret-key", SECRET])
                .arg(&root);
            let (process, address) = listening(&mut command)?;
            processes.push(process);
            addresses.push(address);
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let relay = listener.local_addr()?;
        // It ends with the program.
        named("feed-relay", move || {
            for (client, address) in listener.incoming().flatten().zip(addresses.iter().cycle()) {
                if let Ok(server) = TcpStream::connect(address) {
                    // (A client whose connection is not relayed sees that it ends.)
                    let _ = relay_between(client, server, latency);
                }
            }
        })?;
        Ok(Served {
            processes,
            root,
            relay,
        })
    }

    /// Where the relay listens: `http://127.0.0.1:4711`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.relay)
    }

    /// The bucket's URL for a client of S3.
    #[cfg(feature = "object-store")]
    pub fn bucket(&self) -> String {
        format!("s3://{BUCKET}")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Starts the server, and waits until it listens.
fn listening(command: &mut Command) -> Outcome<(Child, SocketAddr)> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let process = command
        .args(["--host", "127.0.0.1", "--port", &address.port().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut process = process.map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        if began.elapsed() > STARTS_WITHIN {
            process.kill()?;
            return Err(format!("{:?} does not listen", command.get_program()).into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok((process, address))
}

/// Puts each file below a folder, over several connections.
fn put_all(folder: &Path, address: SocketAddr) -> Outcome {
    let mut files = Vec::new();
    files_of(folder, "", &mut files)?;
    let next = AtomicUsize::new(0);
    let put_some = || -> Outcome {
        let mut connection = BufReader::new(TcpStream::connect(address)?);
        while let Some((file, key)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            put(file, key, &mut connection).map_err(|error| format!("{key}: {error}"))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores()).map(|_| scope.spawn(put_some)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("putting files panicked".into()))
        })
    })
}

fn files_of(folder: &Path, prefix: &str, files: &mut Vec<(PathBuf, String)>) -> Outcome {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().ok_or("a file's name is not UTF-8")?;
        let key = format!("{prefix}{name}");
        match entry.file_type()?.is_dir() {
            true => files_of(&entry.path(), &format!("{key}/"), files)?,
            false => files.push((entry.path(), key)),
        }
    }
    Ok(())
}

fn put(file: &Path, key: &str, connection: &mut BufReader<TcpStream>) -> Outcome {
    let mut file = File::open(file)?;
    let bytes = file.metadata()?.len();
    let head = format!(
        "PUT /{BUCKET}/{key} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n"
    );
    connection.get_mut().write_all(head.as_bytes())?;
    io::copy(&mut file, connection.get_mut())?;
    let (mut line, mut status, mut left) = (String::new(), None, 0);
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        let text = line.trim_end();
        match status {
            None => status = Some(text.to_owned()),
            Some(_) if text.is_empty() => break,
            Some(_) => {
                if let Some((name, value)) = text.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    left = value.trim().parse()?;
                }
            }
        }
    }
    io::copy(&mut Read::take(&mut *connection, left), &mut io::sink())?;
    match status {
        Some(status) if status.contains(" 200 ") => Ok(()),
        status => Err(format!("the server answers {}", status.unwrap_or_default()).into()),
    }
}

/// Passes on what client and server say. What the client says is held for so long; a request comes in one piece.
fn relay_between(client: TcpStream, server: TcpStream, latency: Duration) -> Outcome {
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    named("feed-requests", move || {
        let mut request = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_client.read(&mut request) {
            thread::sleep(latency);
            if to_server.write_all(&request[..read]).is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(Shutdown::Write);
    })?;
    named("feed-answers", move || {
        let (mut client, mut server) = (client, server);
        let _ = io::copy(&mut server, &mut client);
        let _ = client.shutdown(Shutdown::Both);
    })
}

fn named(name: &str, run: impl FnOnce() + Send + 'static) -> Outcome {
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(())
}
