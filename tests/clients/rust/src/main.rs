//! rdkafka. See tests/clients/programs.py for the verbs.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance,
};
use rdkafka::producer::{BaseProducer, BaseRecord, FutureProducer, FutureRecord, Producer};
use rdkafka::{ClientConfig, ClientContext, Message, Offset, TopicPartitionList};
use serde_json::{json, Value};

const BURST: i64 = 20;
/// One of this many transactions is aborted.
const ABORTED: i64 = 3;
const WAIT: Duration = Duration::from_secs(10);

fn tell(name: &str, value: Value) {
    println!("{}", json!({ name: value }));
}

fn config(bootstrap: &str, more: &[(&str, &str)]) -> ClientConfig {
    let mut made = ClientConfig::new();
    made.set("bootstrap.servers", bootstrap);
    for (key, value) in more {
        made.set(*key, *value);
    }
    made
}

async fn produce(config: ClientConfig, topic: &str, first: i64, count: i64, pause_ms: u64) {
    let producer: FutureProducer = config.create().unwrap();
    for from in (first..first + count).step_by(BURST as usize) {
        let texts: Vec<String> = (from..(from + BURST).min(first + count))
            .map(|number| number.to_string())
            .collect();
        let sending = texts.iter().map(|text| async {
            let record = FutureRecord::to(topic).key(text).payload(text);
            producer.send(record, WAIT).await.map_err(|(error, _)| error)
        });
        let sent = try_join_all(sending).await.unwrap();
        for (number, delivery) in (from..).zip(sent) {
            tell("sent", json!([delivery.partition, delivery.offset, number]));
        }
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
}

fn tell_record(record: &impl Message) {
    let text = String::from_utf8(record.payload().unwrap().to_vec()).unwrap();
    let number: i64 = text.parse().unwrap();
    tell("read", json!([record.partition(), record.offset(), number]));
}

fn read(config: ClientConfig, topic: &str, count: i64) {
    let consumer: BaseConsumer = config.create().unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), WAIT).unwrap();
    let mut all = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        all.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
    }
    consumer.assign(&all).unwrap();
    for _ in 0..count {
        tell_record(&consumer.poll(None).unwrap().unwrap());
    }
}

struct Owner;

impl ClientContext for Owner {}

impl ConsumerContext for Owner {
    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(assigned) => {
                let mut owned: Vec<i32> =
                    assigned.elements().iter().map(|each| each.partition()).collect();
                owned.sort();
                tell("owns", json!(owned));
            }
            Rebalance::Revoke(_) => tell("owns", json!([])),
            Rebalance::Error(error) => panic!("{error}"),
        }
    }
}

fn group(config: ClientConfig, topic: &str) {
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        end.store(true, Ordering::SeqCst);
    });
    let member: BaseConsumer<Owner> = config.create_with_context(Owner).unwrap();
    member.subscribe(&[topic]).unwrap();
    while !ended.load(Ordering::SeqCst) {
        if let Some(found) = member.poll(Duration::from_millis(100)) {
            let record = found.unwrap();
            tell_record(&record);
            if let Err(error) = member.commit_message(&record, CommitMode::Sync) {
                tell("uncommitted", json!(error.to_string()));
            }
        }
    }
    drop(member);
    tell("left", Value::Null);
}

/// Copies the numbers of one topic to another in transactions until it has copied `count`.
fn copy(reads: ClientConfig, writes: ClientConfig, from: &str, to: &str, count: i64) {
    let reader: BaseConsumer = reads.create().unwrap();
    reader.subscribe(&[from]).unwrap();
    let writer: BaseProducer = writes.create().unwrap();
    writer.init_transactions(WAIT).unwrap();
    let (mut copied, mut turn) = (0, 0);
    while copied < count {
        let mut records = Vec::new();
        while records.len() < BURST as usize {
            match reader.poll(Duration::from_millis(100)) {
                Some(found) => records.push(found.unwrap().detach()),
                None => break,
            }
        }
        let mut is_copied = records.is_empty();
        while !is_copied {
            turn += 1;
            is_copied = turn % ABORTED != 0;
            writer.begin_transaction().unwrap();
            for record in &records {
                let (key, value) = (record.key().unwrap(), record.payload().unwrap());
                writer.send(BaseRecord::to(to).key(key).payload(value)).unwrap();
            }
            let offsets = reader.position().unwrap();
            let group = reader.group_metadata().unwrap();
            writer.send_offsets_to_transaction(&offsets, &group, WAIT).unwrap();
            if is_copied {
                writer.commit_transaction(WAIT).unwrap();
            } else {
                writer.flush(WAIT).unwrap();
                writer.abort_transaction(WAIT).unwrap();
            }
            tell(if is_copied { "committed" } else { "aborted" }, json!(records.len()));
        }
        copied += records.len() as i64;
    }
}

/// Polls until the result is the wanted one: brokers apply a change a moment after its response.
async fn settled(ask: impl AsyncFn() -> Value, wanted: Value) -> Value {
    for _ in 0..200 {
        if ask().await == wanted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ask().await
}

async fn admin(config: ClientConfig, topic: &str, name: &str) {
    let asked: AdminClient<DefaultClientContext> = config.create().unwrap();
    let consumer: BaseConsumer = config.clone().set("group.id", name).create().unwrap();
    let options = AdminOptions::new();
    let resource = ResourceSpecifier::Topic(topic);
    let partitions = || {
        let metadata = consumer.fetch_metadata(Some(topic), WAIT).unwrap();
        metadata.topics()[0].partitions().len()
    };
    let retention = || async {
        let described = asked.describe_configs([&resource], &options).await.unwrap();
        let found = described.into_iter().next().unwrap().unwrap();
        found.get("retention.ms").unwrap().value.clone()
    };
    let is_listed = || {
        let groups = consumer.fetch_group_list(None, WAIT).unwrap();
        groups.groups().iter().any(|group| group.name() == name)
    };
    let new = NewTopic::new(topic, 3, TopicReplication::Fixed(3)).set("retention.ms", "3600000");
    asked.create_topics([&new], &options).await.unwrap()[0].as_ref().unwrap();
    let whole = async || json!([partitions(), retention().await]);
    tell("create_topic", settled(whole, json!([3, "3600000"])).await);
    let alter = AlterConfig::new(resource).set("retention.ms", "7200000");
    asked.alter_configs([&alter], &options).await.unwrap()[0].as_ref().unwrap();
    tell("alter_config", settled(async || json!(retention().await), json!("7200000")).await);
    let more = NewPartitions::new(topic, 4);
    asked.create_partitions([&more], &options).await.unwrap()[0].as_ref().unwrap();
    tell("create_partitions", settled(async || json!(partitions()), json!(4)).await);
    tell("list_groups", json!(is_listed()));
    let groups = consumer.fetch_group_list(Some(name), WAIT).unwrap();
    let described = &groups.groups()[0];
    let state = described.state().to_lowercase();
    tell("describe_group", json!([state, described.members().len()]));
    let (_, end) = consumer.fetch_watermarks(topic, 0, WAIT).unwrap();
    tell("list_offsets", json!(end));
    asked.delete_groups(&[name], &options).await.unwrap()[0].as_ref().unwrap();
    tell("delete_group", json!(is_listed()));
    asked.delete_topics(&[topic], &options).await.unwrap()[0].as_ref().unwrap();
    let is_there = async || {
        let metadata = consumer.fetch_metadata(None, WAIT).unwrap();
        json!(metadata.topics().iter().any(|each| each.name() == topic))
    };
    tell("delete_topic", settled(is_there, json!(false)).await);
}

#[tokio::main]
async fn main() {
    let given: Vec<String> = std::env::args().collect();
    let (bootstrap, verb, topic) = (&given[1], given[2].as_str(), &given[3]);
    let number = |index: usize| given[index].parse::<i64>().unwrap();
    // The crate has no function for its own version, which Cargo.toml pins.
    let manifest = include_str!("../Cargo.toml");
    let pin = manifest.split("rdkafka = { version = \"=").nth(1).unwrap();
    tell("version", json!(pin.split('"').next().unwrap()));
    match verb {
        "produce" | "idempotent" => {
            let idempotent = (verb == "idempotent").to_string();
            let with = [("acks", "all"), ("enable.idempotence", idempotent.as_str())];
            let config = config(bootstrap, &with);
            produce(config, topic, number(4), number(5), number(6) as u64).await;
        }
        "read" => read(config(bootstrap, &[("group.id", "not-used")]), topic, number(4)),
        "group" => {
            let with = [
                ("group.id", given[4].as_str()),
                ("auto.offset.reset", "earliest"),
                ("enable.auto.commit", "false"),
                ("session.timeout.ms", "10000"),
                ("heartbeat.interval.ms", "500"),
            ];
            group(config(bootstrap, &with), topic);
        }
        "copy" => {
            let name = given[5].as_str();
            let reads = [
                ("group.id", name),
                ("auto.offset.reset", "earliest"),
                ("enable.auto.commit", "false"),
                ("session.timeout.ms", "10000"),
            ];
            let writes = config(bootstrap, &[("transactional.id", name)]);
            copy(config(bootstrap, &reads), writes, topic, &given[4], number(6));
        }
        "admin" => admin(config(bootstrap, &[]), topic, &given[4]).await,
        _ => panic!("{verb}"),
    }
}
