//! Who asks: somebody on this machine, somebody with a password, or somebody whom a proxy has logged in.
//!
//! Invariant: a request that gets past this has an [`Access`] of our making, whatever its headers say.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use data_encoding::BASE64;
use outbox_admin::web::{Access, Role};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::users::Users;
use crate::config::ConfigError;

/// Passwords that are checked at a time. Each takes a processor and 19 MiB, and anybody may ask.
const CHECKS_MAX: u32 = 2;

/// Passwords that are checked or wait to be checked. Beyond it a request is answered with 503.
const CHECKS_QUEUED_MAX: u32 = 18;

/// Logins that are remembered, each as a hash under a key of this process.
const REMEMBERED_MAX: usize = 256;

/// Characters of a refused name in the log.
const NAME_LOGGED_MAX: usize = 64;

/// How somebody comes in.
#[derive(Debug)]
pub(super) enum Login {
    /// Nobody logs in: whoever is on this machine.
    Local { access: Access, hosts: Vec<String> },
    /// By name and password.
    Passwords(Box<Passwords>),
    /// A proxy has logged them in.
    Proxy {
        users: Users,
        header: HeaderName,
        proxies: Vec<IpAddr>,
    },
}

#[derive(Debug)]
pub(super) struct Passwords {
    users: Arc<Users>,
    key: Uuid,
    checks: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    remembered: Mutex<Vec<([u8; 32], Access)>>,
}

impl Login {
    pub(super) fn local(role: Role, hosts: &[String]) -> Self {
        let known = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        Self::Local {
            access: Access::new("local", role),
            hosts: known.into_iter().chain(hosts.iter().cloned()).collect(),
        }
    }

    pub(super) fn passwords(users: Users) -> Self {
        Self::Passwords(Box::new(Passwords::new(users)))
    }

    pub(super) fn proxy(users: Users, header: &str, proxies: &[IpAddr]) -> Result<Self, ConfigError> {
        let header = HeaderName::try_from(header).map_err(|_| {
            ConfigError::setting(
                "`--proxy-header` is no name of a header",
                "write it as the proxy does",
            )
        })?;
        Ok(Self::Proxy {
            users,
            header,
            proxies: proxies.to_vec(),
        })
    }

    async fn access(&self, peer: IpAddr, headers: &HeaderMap) -> Result<Access, Box<Response>> {
        match self {
            Self::Local { access, hosts } => {
                // A page of elsewhere can give its own name the address of this machine; the browser then sends that name.
                let host = headers.get(HOST).and_then(|host| host.to_str().ok());
                let host = host.map(without_port).unwrap_or_default();
                if hosts.iter().any(|known| known.eq_ignore_ascii_case(host)) {
                    return Ok(access.clone());
                }
                let why = "this name of the machine is not known; call it localhost, or start it with `--host NAME`\n";
                Err(Box::new((StatusCode::MISDIRECTED_REQUEST, why).into_response()))
            }
            Self::Passwords(passwords) => match passwords.access(headers).await {
                Ok(access) => Ok(access),
                Err(Refused::Unknown) => {
                    let ask = (WWW_AUTHENTICATE, "Basic realm=\"outbox\", charset=\"UTF-8\"");
                    Err(Box::new(
                        (StatusCode::UNAUTHORIZED, [ask], "log in\n").into_response(),
                    ))
                }
                Err(Refused::Busy) => {
                    let why = "too many passwords are being checked; try again\n";
                    let later = [(RETRY_AFTER, "1")];
                    Err(Box::new(
                        (StatusCode::SERVICE_UNAVAILABLE, later, why).into_response(),
                    ))
                }
            },
            Self::Proxy {
                users,
                header,
                proxies,
            } => {
                let mut names = headers.get_all(header).into_iter();
                // Two names would let the proxy's one stand behind one that the browser has sent.
                let name = match (names.next(), names.next()) {
                    (Some(name), None) if proxies.contains(&peer.to_canonical()) => name.to_str().ok(),
                    _ => None,
                };
                let access = name.and_then(|name| Some(Access::new(name, users.role(name)?)));
                let why = "the proxy has named no user of the file\n";
                access.ok_or_else(|| Box::new((StatusCode::FORBIDDEN, why).into_response()))
            }
        }
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Why a login is refused.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// No credentials, an unknown user or a wrong password.
    Unknown,
    /// The queue of passwords is full.
    Busy,
}

impl Passwords {
    fn new(users: Users) -> Self {
        Self {
            users: Arc::new(users),
            key: Uuid::new_v4(),
            checks: Arc::new(Semaphore::new(CHECKS_MAX as usize)),
            queue: Arc::new(Semaphore::new(CHECKS_QUEUED_MAX as usize)),
            remembered: Mutex::new(Vec::new()),
        }
    }

    async fn access(&self, headers: &HeaderMap) -> Result<Access, Refused> {
        let encoded = credentials(headers).ok_or(Refused::Unknown)?;
        let digest = Sha256::new()
            .chain_update(self.key)
            .chain_update(encoded)
            .finalize();
        let digest: [u8; 32] = digest.into();
        if let Some(access) = self.remembered(&digest) {
            return Ok(access);
        }
        let (name, password) = decoded(encoded).ok_or(Refused::Unknown)?;
        let turn = self.turn().await?;
        let (users, asked) = (self.users.clone(), name.clone());
        let checked = tokio::task::spawn_blocking(move || {
            // The work continues after its client is gone, so the work holds the permits.
            let _turn = turn;
            users.check(&asked, &password)
        });
        let Some(role) = checked.await.ok().flatten() else {
            let user: String = name.chars().take(NAME_LOGGED_MAX).collect();
            tracing::warn!(user = user.escape_debug().to_string(), "a login was refused");
            return Err(Refused::Unknown);
        };
        let access = Access::new(name, role);
        self.remember(digest, access.clone());
        Ok(access)
    }

    /// Waits for the permits to check a password.
    async fn turn(&self) -> Result<[OwnedSemaphorePermit; 2], Refused> {
        let queued = self.queue.clone().try_acquire_owned();
        let queued = queued.map_err(|_| Refused::Busy)?;
        let turn = self.checks.clone().acquire_owned().await;
        Ok([turn.map_err(|_| Refused::Busy)?, queued])
    }

    fn remembered(&self, digest: &[u8; 32]) -> Option<Access> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let found = remembered.iter().find(|(known, _)| known == digest);
        found.map(|(_, access)| access.clone())
    }

    fn remember(&self, digest: [u8; 32], access: Access) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED_MAX {
            remembered.remove(0);
        }
        remembered.push((digest, access));
    }
}

/// Name and password as the header has them.
fn credentials(headers: &HeaderMap) -> Option<&str> {
    let (scheme, encoded) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("basic").then_some(encoded)
}

fn decoded(encoded: &str) -> Option<(String, String)> {
    let decoded = String::from_utf8(BASE64.decode(encoded.trim().as_bytes()).ok()?).ok()?;
    let (name, password) = decoded.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

/// Lets a request in with the access of whoever asks.
pub(super) async fn login(
    State(login): State<Arc<Login>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    match login.access(peer.ip(), request.headers()).await {
        Ok(access) => {
            request.extensions_mut().insert(access);
            next.run(request).await
        }
        Err(refused) => *refused,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt as _;

    use super::*;

    fn passwords() -> Passwords {
        let line = crate::commands::serve::users::line("ada:viewer", "correct horse battery").unwrap();
        Passwords::new(Users::parse("users", &line).unwrap())
    }

    fn basic(user: &str) -> HeaderMap {
        let encoded = BASE64.encode(format!("{user}:correct horse battery").as_bytes());
        HeaderMap::from_iter([(AUTHORIZATION, format!("Basic {encoded}").parse().unwrap())])
    }

    #[tokio::test]
    async fn a_full_queue_refuses_all_but_known_logins() {
        let passwords = passwords();
        passwords.access(&basic("ada")).await.unwrap();
        let held = passwords.queue.clone().try_acquire_many_owned(CHECKS_QUEUED_MAX);
        let held = held.unwrap();
        assert_eq!(passwords.access(&basic("eve")).await, Err(Refused::Busy));
        passwords.access(&basic("ada")).await.unwrap();
        drop(held);
        assert_eq!(passwords.access(&basic("eve")).await, Err(Refused::Unknown));
    }

    #[test]
    fn a_dropped_login_holds_its_turn_until_its_work_ends() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.max_blocking_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let passwords = passwords();
            // The work of the login cannot begin before this ends.
            let (end, ended) = mpsc::channel::<()>();
            let blocking = tokio::task::spawn_blocking(move || ended.recv());
            assert!(passwords.access(&basic("eve")).now_or_never().is_none());
            assert_eq!(passwords.checks.available_permits(), CHECKS_MAX as usize - 1);
            drop(end);
            blocking.await.unwrap().unwrap_err();
            // The work gives back both turns, one after the other.
            drop(passwords.checks.acquire_many(CHECKS_MAX).await.unwrap());
            drop(passwords.queue.acquire_many(CHECKS_QUEUED_MAX).await.unwrap());
        });
    }

    #[test]
    fn a_host_is_known_with_and_without_its_port() {
        for (host, expected) in [
            ("localhost", "localhost"),
            ("localhost:9188", "localhost"),
            ("[::1]:9188", "[::1]"),
            ("[::1]", "[::1]"),
            ("evil.example:80", "evil.example"),
        ] {
            assert_eq!(without_port(host), expected);
        }
    }
}
