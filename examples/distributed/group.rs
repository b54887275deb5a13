//! How ranks talk: over TCP, with rank 0 in the middle. It carries what NCCL needs to begin, and, on the CPU, the gradients.
//!
//! Rank 0 adds in the order of the ranks, so that all get the same bits. A star is as simple as it can be, and rank 0's link is its limit: it is for tests on the
//! CPU, and the GPUs' sums go by NCCL.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use pinfeed::BoxError;
use pinfeed::loader::World;

/// What each connection begins with: that it is one of these.
const HELLO: &[u8; 8] = b"pinfeed\x01";

pub(crate) struct Group {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    links: Links,
}

enum Links {
    /// Rank 0 has a connection to each other rank, in their order.
    Center(Vec<TcpStream>),
    Other(TcpStream),
}

impl Group {
    /// Waits until all ranks are there; for rank 0 to listen, no longer than `patience`.
    pub(crate) fn join(
        world: &World,
        master: Option<&str>,
        patience: Duration,
    ) -> Result<Group, BoxError> {
        let (rank, size) = (world.rank(), world.size());
        let address = master.map_or_else(of_launcher, |master| Ok(master.to_owned()))?;
        let links = match (rank, size) {
            (_, 1) => Links::Center(Vec::new()),
            (0, _) => Links::Center(welcome(&address, size)?),
            _ => Links::Other(greet(&address, rank, patience)?),
        };
        Ok(Group { rank, size, links })
    }

    /// Adds up what all ranks have, in place.
    pub(crate) fn sum(&mut self, values: &mut [f32]) -> Result<(), BoxError> {
        let mut bytes = to_bytes(values);
        match &mut self.links {
            Links::Center(others) => {
                for (other, rank) in others.iter_mut().zip(1..) {
                    other
                        .read_exact(&mut bytes)
                        .map_err(|error| gone(rank, &error))?;
                    let theirs = bytes.as_chunks::<4>().0;
                    for (value, theirs) in values.iter_mut().zip(theirs) {
                        *value += f32::from_le_bytes(*theirs);
                    }
                }
                bytes = to_bytes(values);
            }
            Links::Other(center) => center.write_all(&bytes).map_err(|error| gone(0, &error))?,
        }
        self.broadcast(&mut bytes)?;
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    /// Gives all ranks what rank 0 has.
    pub(crate) fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), BoxError> {
        match &mut self.links {
            Links::Center(others) => {
                for (other, rank) in others.iter_mut().zip(1..) {
                    other.write_all(bytes).map_err(|error| gone(rank, &error))?;
                }
            }
            Links::Other(center) => center.read_exact(bytes).map_err(|error| gone(0, &error))?,
        }
        Ok(())
    }

    /// Waits until all ranks have come so far.
    pub(crate) fn barrier(&mut self) -> Result<(), BoxError> {
        self.sum(&mut [0.0])
    }

    /// Fails unless all ranks have the same number.
    pub(crate) fn agree(&mut self, own: u64) -> Result<(), BoxError> {
        let mut bytes = own.to_le_bytes();
        self.broadcast(&mut bytes)?;
        let center = u64::from_le_bytes(bytes);
        let mut differ = [f32::from(u8::from(center != own))];
        self.sum(&mut differ)?;
        match differ[0] > 0.0 {
            true => Err(format!("{} ranks have other weights than rank 0", differ[0]).into()),
            false => Ok(()),
        }
    }
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn gone(rank: usize, error: &io::Error) -> String {
    format!("rank {rank} is gone: {error}")
}

/// torchrun names a host and its own port; the one behind it is taken. Without it, all ranks are on this host.
fn of_launcher() -> Result<String, BoxError> {
    let (Ok(host), Ok(port)) = (env::var("MASTER_ADDR"), env::var("MASTER_PORT")) else {
        return Ok("127.0.0.1:29601".to_owned());
    };
    let port: u16 = port
        .parse()
        .map_err(|_| format!("MASTER_PORT is {port:?}"))?;
    Ok(format!("{host}:{}", port.wrapping_add(1)))
}

/// Rank 0 takes a connection of each other rank. It waits for as long as that takes: where one does not start, the launcher ends all.
fn welcome(address: &str, size: usize) -> Result<Vec<TcpStream>, BoxError> {
    let listener = TcpListener::bind(address).map_err(|error| {
        format!("rank 0 cannot listen at {address}: {error} (--master names another address)")
    })?;
    let mut others: Vec<Option<TcpStream>> = (1..size).map(|_| None).collect();
    while others.iter().any(Option::is_none) {
        let (stream, _) = listener.accept()?;
        let Ok((stream, rank)) = greeted(stream) else {
            continue; // it is none of ours
        };
        match rank.checked_sub(1).and_then(|at| others.get_mut(at)) {
            Some(place) if place.is_none() => *place = Some(stream),
            _ => {
                return Err(
                    format!("two processes are rank {rank}, or there are not {size}").into(),
                );
            }
        }
    }
    Ok(others.into_iter().flatten().collect())
}

fn greeted(mut stream: TcpStream) -> io::Result<(TcpStream, usize)> {
    let (mut hello, mut rank) = ([0; 8], [0; 4]);
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.read_exact(&mut hello)?;
    if hello != *HELLO {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.read_exact(&mut rank)?;
    stream.set_read_timeout(None)?; // a step takes as long as it takes
    stream.set_nodelay(true)?;
    Ok((stream, u32::from_le_bytes(rank) as usize))
}

/// Another rank connects to rank 0, which may not listen yet.
fn greet(address: &str, rank: usize, patience: Duration) -> Result<TcpStream, BoxError> {
    let end = Instant::now() + patience;
    loop {
        let connected = address
            .to_socket_addrs()
            .and_then(|mut found| found.next().ok_or_else(|| io::ErrorKind::NotFound.into()))
            .and_then(|found| TcpStream::connect_timeout(&found, Duration::from_secs(5)));
        match connected {
            Ok(mut stream) => {
                stream.set_nodelay(true)?;
                stream.write_all(HELLO)?;
                stream.write_all(&(rank as u32).to_le_bytes())?;
                return Ok(stream);
            }
            Err(error) if Instant::now() > end => {
                return Err(format!("rank 0 is not at {address}: {error}").into());
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}
