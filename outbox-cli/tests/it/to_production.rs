//! Runs the commands of `docs/guide/17-to-production.md` in order, on empty servers.

use std::time::Duration;

use outbox::nats::EventStream;
use outbox::nats::async_nats::jetstream::{self, stream};
use outbox::testing::eventually;

use crate::operate::answer::{Answer, run};
use crate::place::{Kind, Place, Program};

const PAGE: &str = include_str!("../../../docs/guide/17-to-production.md");

fn commands() -> impl Iterator<Item = &'static str> {
    let blocks = PAGE.split("```sh\n").skip(1);
    blocks.flat_map(|block| block.split("```").next().unwrap().lines())
}

fn file() -> &'static str {
    let (_, file) = PAGE.split_once("```toml\n").unwrap();
    file.split("```").next().unwrap()
}

struct Empty {
    place: Place,
    config: String,
    database: String,
    roles: [(&'static str, String); 2],
    relay: Option<Program>,
    last: Option<Answer>,
}

impl Empty {
    async fn open() -> Option<Self> {
        let place = Place::open(Kind::Postgres).await?;
        place.execute(&format!("DROP SCHEMA {}", place.name)).await;
        let config = file().replace("SHOP", &place.name);
        let config = config.replace("\"shop\"", &format!("\"{}\"", place.name));
        let config = config.replacen(&format!("name = \"{}\"", place.name), "name = \"shop\"", 1);
        std::fs::write(place.folder.path().join("outbox.toml"), &config).unwrap();
        Some(Self {
            database: place.url.clone(),
            roles: [
                ("shop_relay", format!("relay_{}", place.name)),
                ("shop_operator", format!("operator_{}", place.name)),
            ],
            relay: None,
            last: None,
            config,
            place,
        })
    }

    fn named(&self, text: &str) -> String {
        let name = &self.place.name;
        let [(relay, relay_here), (operator, operator_here)] = &self.roles;
        text.replace(relay, relay_here)
            .replace(operator, operator_here)
            .replace(
                "--stream SHOP --prefix shop",
                &format!("--stream {name} --prefix {name}"),
            )
            .replace("--schema shop", &format!("--schema {name}"))
            .replace(
                "SCHEMA IF NOT EXISTS shop",
                &format!("SCHEMA IF NOT EXISTS {name}"),
            )
            .replace("shop.outbox_record", &format!("{name}.outbox_record"))
            .replace('…', "secret")
    }

    async fn carry_out(&mut self, line: &str) {
        let (command, comment) = line.split_once(" #").unwrap_or((line, ""));
        let command = command.trim();
        if let Some(sql) = command.strip_prefix("psql -c ") {
            let sql = sql[1..sql.len() - 1].replace("\\\"", "\"");
            self.place.execute(&self.named(&sql)).await;
        } else if let Some(file) = command.strip_prefix("psql -f ") {
            let sql = std::fs::read_to_string(self.place.folder.path().join(file)).unwrap();
            for statement in sql.lines().filter(|line| !line.starts_with("--")) {
                self.place.execute(statement).await;
            }
        } else if command.starts_with("nats stream add SHOP ") {
            self.add_stream(command).await;
        } else if let Some(role) = command.strip_prefix("export DATABASE_URL=postgres://shop_") {
            let (role, _) = role.split_once(':').unwrap();
            let (_, server) = self.place.url.rsplit_once('@').unwrap();
            self.database = format!(
                "postgres://{}:secret@{server}",
                self.named(&format!("shop_{role}"))
            );
        } else if command.starts_with("outbox relay run ") {
            let variables = [
                ("DATABASE_URL", self.database.as_str()),
                ("NATS_URL", self.place.nats.as_str()),
            ];
            let mut relay = Program::start(&self.config, &variables);
            relay.until_ready().await;
            self.relay = Some(relay);
        } else if let Some(words) = command.strip_prefix("outbox ") {
            let code = comment
                .split_once("ends with ")
                .map_or(0, |(_, code)| code[..1].parse().unwrap());
            self.ask(words, code).await;
        } else {
            assert!(
                command.starts_with("export DATABASE_URL=postgres://owner:"),
                "{line}"
            );
        }
    }

    async fn add_stream(&self, command: &str) {
        let options = "--subjects 'shop.>' --storage file --discard new --dupe-window 10m --max-age 14d --max-bytes 10GB";
        assert!(command.ends_with(options), "{command}");
        let client = EventStream::new(&self.place.name)
            .connect(&self.place.nats)
            .await
            .unwrap();
        let config = stream::Config {
            name: self.place.name.clone(),
            subjects: vec![format!("{}.>", self.place.name)],
            storage: stream::StorageType::File,
            discard: stream::DiscardPolicy::New,
            duplicate_window: Duration::from_mins(10),
            max_age: Duration::from_hours(14 * 24),
            max_bytes: 1 << 20,
            ..stream::Config::default()
        };
        jetstream::new(client).create_stream(config).await.unwrap();
    }

    async fn ask(&mut self, words: &str, code: i32) {
        let (words, target) = words.split_once(" > ").unwrap_or((words, ""));
        let named = self.named(words);
        let file = self.place.folder.path().join("outbox.toml");
        let all: Vec<&str> = named
            .split_whitespace()
            .map(|word| {
                if word == "outbox.toml" {
                    file.to_str().unwrap()
                } else {
                    word
                }
            })
            .collect();
        let variables = [
            ("DATABASE_URL", self.database.as_str()),
            ("NATS_URL", self.place.nats.as_str()),
        ];
        let mut answer = run(&all, &variables);
        if all[0] == "timeline" {
            eventually("the order on the stream", async || {
                answer = run(&all, &variables);
                answer.code != Some(code) || answer.out.contains(" published ")
            })
            .await;
        }
        let answer = answer.expect(code);
        if !target.is_empty() && !target.contains('/') {
            std::fs::write(self.place.folder.path().join(target), &answer.out).unwrap();
        }
        self.last = Some(answer);
    }

    async fn close(mut self) {
        if let Some(mut relay) = self.relay.take() {
            relay.terminate();
            assert!(relay.end().await.success(), "{}", relay.log());
        }
        for (_, role) in &self.roles {
            let drop = format!("DROP OWNED BY {role}; DROP ROLE {role}");
            self.place.execute(&drop).await;
        }
        self.place.close().await;
    }
}

#[cfg(unix)]
#[tokio::test]
async fn guide_commands_set_up_a_production_relay() {
    let Some(mut empty) = Empty::open().await else {
        return;
    };
    let mut count = 0;
    for line in commands() {
        empty.carry_out(line).await;
        count += 1;
        let Some(answer) = &empty.last else { continue };
        if line.starts_with("outbox timeline") {
            assert!(answer.out.contains("order.placed"), "{answer:?}");
        }
        if line.starts_with("outbox list") {
            assert!(answer.out.contains("order/4711"), "{answer:?}");
        }
    }
    assert_eq!(count, 26);
    let last = empty.last.as_ref().unwrap();
    assert!(last.out.starts_with('{'), "{last:?}");
    empty.close().await;
}
