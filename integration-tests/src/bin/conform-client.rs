//! Clients for `c10d conform client`: `conform-client ours` is that of `c10d-store`; `conform-client small [MISTAKE]` is a
//! few lines of its own, as somebody writes them by hand, without the mistake or with it.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "the suite reads what it prints")]

use std::env;
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use byteorder::{BigEndian, ByteOrder, LittleEndian};
use c10d_store::{Store, StoreError, StoreExt, TcpStore};

type Answer = Result<String, Box<dyn std::error::Error>>;

trait Client {
    fn perform(&mut self, operation: &str, arguments: &[&str]) -> Answer;
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = env::var("MASTER_ADDR")?;
    let port: u16 = env::var("MASTER_PORT")?.parse()?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut client: Box<dyn Client> = match arguments[0].as_str() {
        "ours" => Box::new(Ours(TcpStore::connect(&host, port)?)),
        _ => Box::new(Small::connect(
            &host,
            port,
            arguments.get(1).map_or("", String::as_str),
        )?),
    };
    println!("ready");
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let arguments = words[1..].iter();
        let arguments: Vec<&str> = arguments
            .map(|word| if *word == "\"\"" { "" } else { *word })
            .collect();
        match client.perform(words[0], &arguments) {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("error {}", error.to_string().replace('\n', " ")),
        }
    }
    Ok(())
}

fn shown(value: &[u8]) -> String {
    match value {
        [] => "\"\"".to_owned(),
        value => String::from_utf8_lossy(value).into_owned(),
    }
}

fn milliseconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    Ok(Duration::from_millis(text.parse()?))
}

struct Ours(TcpStore);

impl Client for Ours {
    fn perform(&mut self, operation: &str, arguments: &[&str]) -> Answer {
        let store = &self.0;
        let or_timeout = |result: Result<(), StoreError>| match result {
            Err(StoreError::Timeout { .. } | StoreError::BarrierTimeout { .. }) => {
                Ok("timeout".to_owned())
            }
            result => result.map(|()| "ok".to_owned()),
        };
        let ok = "ok".to_owned();
        Ok(match (operation, arguments) {
            ("set", [key, value]) => store.set(key, value).map(|()| ok)?,
            ("get", [key]) => shown(&store.get(key)?),
            ("add", [key, delta]) => store.add(key, delta.parse()?)?.to_string(),
            ("check", keys) => store.check(keys)?.to_string(),
            ("wait", [time, keys @ ..]) => {
                or_timeout(store.wait_timeout(keys, Some(milliseconds(time)?)))?
            }
            ("compare_set", [key, expected, desired]) => shown(
                &store
                    .compare_set(key, expected.as_bytes(), desired.as_bytes())?
                    .into_value(),
            ),
            ("append", [key, value]) => store.append(key, value.as_bytes()).map(|()| ok)?,
            ("multi_set", words) => {
                let pairs: Vec<(&str, &[u8])> = words
                    .chunks(2)
                    .map(|pair| (pair[0], pair[1].as_bytes()))
                    .collect();
                store.multi_set(&pairs).map(|()| ok)?
            }
            ("multi_get", keys) => {
                let values: Vec<String> =
                    store.multi_get(keys)?.iter().map(|it| shown(it)).collect();
                values.join(" ")
            }
            ("delete", [key]) => store.delete_key(key)?.to_string(),
            ("queue_push", [key, value]) => store.queue_push(key, value.as_bytes()).map(|()| ok)?,
            ("queue_pop", [key]) => shown(&store.queue_pop(key)?),
            ("queue_len", [key]) => store.queue_len(key)?.to_string(),
            ("barrier", [time, key, size]) => {
                or_timeout(store.barrier_timeout(key, size.parse()?, Some(milliseconds(time)?)))?
            }
            _ => "unsupported".to_owned(),
        })
    }
}

/// Without queues and barriers.
struct Small {
    stream: TcpStream,
    mistake: String,
}

impl Small {
    fn connect(host: &str, port: u16, mistake: &str) -> io::Result<Self> {
        let mut client = Self {
            stream: TcpStream::connect((host, port))?,
            mistake: mistake.to_owned(),
        };
        client.stream.set_nodelay(true)?;
        let magic = [0x00, 0xce, 0xf7, 0x85, 0x3c];
        match mistake {
            "no validate" => {}
            "validate in two writes" => {
                client.stream.write_all(&magic[..1])?;
                std::thread::sleep(Duration::from_millis(20));
                client.stream.write_all(&magic[1..])?;
            }
            _ => client.stream.write_all(&magic)?,
        }
        Ok(client)
    }

    fn has(&self, mistake: &str) -> bool {
        self.mistake == mistake
    }

    fn word(&self, number: u64) -> [u8; 8] {
        let mut bytes = [0; 8];
        if self.has("big endian") {
            BigEndian::write_u64(&mut bytes, number);
        } else {
            LittleEndian::write_u64(&mut bytes, number);
        }
        bytes
    }

    fn blob(&self, bytes: &[u8]) -> Vec<u8> {
        let length = self.word(bytes.len() as u64);
        let length = if self.has("lengths of four bytes") {
            &length[..4]
        } else {
            &length
        };
        [length, bytes].concat()
    }

    fn key(&self, key: &str) -> Vec<u8> {
        let slash = if self.has("no slash") { "" } else { "/" };
        self.blob(format!("{slash}{key}").as_bytes())
    }

    fn keys(&self, keys: &[&str]) -> Vec<u8> {
        let keys = keys.iter().map(|key| self.key(key));
        let count = self.word(keys.len() as u64).to_vec();
        [count].into_iter().chain(keys).collect::<Vec<_>>().concat()
    }

    fn send(&mut self, opcode: u8, parts: &[Vec<u8>]) -> io::Result<()> {
        let bytes = [&[opcode][..], &parts.concat()].concat();
        self.stream.write_all(&bytes)
    }

    fn read(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        if self.has("one read for a reply") && length > 0 {
            let _ = self.stream.read(&mut bytes)?;
        } else if self.has("an end is no error") {
            let _ = self.stream.read_exact(&mut bytes);
        } else {
            self.stream.read_exact(&mut bytes)?;
        }
        Ok(bytes)
    }

    fn read_number(&mut self) -> io::Result<i64> {
        Ok(LittleEndian::read_i64(&self.read(8)?))
    }

    fn read_blob(&mut self) -> io::Result<Vec<u8>> {
        let length = self.read_number()?;
        self.read(usize::try_from(length).map_err(io::Error::other)?)
    }

    /// Whether the keys exist in time.
    fn wait(&mut self, time: Option<Duration>, keys: &[&str]) -> io::Result<bool> {
        let keys = self.keys(keys);
        self.send(6, &[keys])?;
        self.stream.set_read_timeout(time)?;
        let mut first = [0];
        let read = self.stream.read(&mut first);
        self.stream.set_read_timeout(None)?;
        match read {
            Ok(0) if !self.has("an end is no error") => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Err(_) if self.has("no cancel") => Ok(false),
            Err(_) => {
                self.send(12, &[])?;
                if self.read(1)? == [0] && !self.has("one byte after a cancel") {
                    self.read(1)?;
                }
                Ok(false)
            }
        }
    }
}

impl Client for Small {
    fn perform(&mut self, operation: &str, arguments: &[&str]) -> Answer {
        let text = |text: &str| text.as_bytes().to_vec();
        Ok(match (operation, arguments) {
            ("set", [key, value]) => {
                let parts = [self.key(key), self.blob(&text(value))];
                self.send(1, &parts)?;
                "ok".to_owned()
            }
            ("append", [key, value]) => {
                let parts = [self.key(key), self.blob(&text(value))];
                self.send(9, &parts)?;
                "ok".to_owned()
            }
            ("get", [key]) => {
                if !self.has("get without a wait") {
                    self.wait(None, &[key])?;
                }
                let key = self.key(key);
                self.send(3, &[key])?;
                shown(&self.read_blob()?)
            }
            ("add", [key, delta]) => {
                let parts = [
                    self.key(key),
                    self.word(delta.parse::<i64>()? as u64).to_vec(),
                ];
                self.send(4, &parts)?;
                let sum = self.read_number()?;
                match self.has("unsigned sums") {
                    true => (sum as u64).to_string(),
                    false => sum.to_string(),
                }
            }
            ("check", keys) => {
                let keys = self.keys(keys);
                self.send(5, &[keys])?;
                let is_ready = self.read(1)? == [0];
                (is_ready != self.has("check is a bool")).to_string()
            }
            ("wait", [time, keys @ ..]) => match self.wait(Some(milliseconds(time)?), keys)? {
                true => "ok".to_owned(),
                false => "timeout".to_owned(),
            },
            ("compare_set", [key, expected, desired]) => {
                let parts = [
                    self.key(key),
                    self.blob(&text(expected)),
                    self.blob(&text(desired)),
                ];
                self.send(2, &parts)?;
                shown(&self.read_blob()?)
            }
            ("delete", [key]) => {
                let key = self.key(key);
                self.send(8, &[key])?;
                (self.read_number()? == 1).to_string()
            }
            ("multi_set", words) => {
                let mut parts = vec![self.word(words.len() as u64 / 2).to_vec()];
                for pair in words.chunks(2) {
                    parts.extend([self.key(pair[0]), self.blob(&text(pair[1]))]);
                }
                self.send(11, &parts)?;
                "ok".to_owned()
            }
            ("multi_get", keys) => {
                self.wait(None, keys)?;
                let request = self.keys(keys);
                self.send(10, &[request])?;
                let mut values = Vec::new();
                for _ in keys {
                    values.push(shown(&self.read_blob()?));
                }
                values.join(" ")
            }
            _ => "unsupported".to_owned(),
        })
    }
}
