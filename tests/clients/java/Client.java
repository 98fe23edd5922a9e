// Apache Kafka's own clients. See tests/clients/programs.py for the verbs.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.utils.AppInfoParser;

public final class Client {
    private static final int BURST = 20;

    private static String bootstrap;

    static synchronized void tell(String name, Object json) {
        System.out.println("{\"" + name + "\": " + json + "}");
    }

    static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    static Properties settings(String... more) {
        Properties made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < more.length; i += 2) {
            made.put(more[i], more[i + 1]);
        }
        for (String side : List.of("key", "value")) {
            String kind = "org.apache.kafka.common.serialization.String";
            made.put(side + ".serializer", kind + "Serializer");
            made.put(side + ".deserializer", kind + "Deserializer");
        }
        return made;
    }

    private static void produce(
            String idempotent, String topic, int first, int count, int pauseMs) throws Exception {
        Properties with = settings("acks", "all", "enable.idempotence", idempotent);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(with)) {
            for (int from = first; from < first + count; from += BURST) {
                List<Future<RecordMetadata>> sending = new ArrayList<>();
                for (int number = from; number < Math.min(from + BURST, first + count); number++) {
                    String text = String.valueOf(number);
                    sending.add(producer.send(new ProducerRecord<>(topic, text, text)));
                }
                for (int i = 0; i < sending.size(); i++) {
                    RecordMetadata sent = sending.get(i).get();
                    tell("sent", List.of(sent.partition(), sent.offset(), from + i));
                }
                Thread.sleep(pauseMs);
            }
        }
    }

    private static void tellRecord(ConsumerRecord<String, String> record) {
        tell("read", List.of(record.partition(), record.offset(), record.value()));
    }

    private static void read(String topic, int count, String isolation) {
        Properties with = settings("isolation.level", isolation);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(with)) {
            List<TopicPartition> all = consumer.partitionsFor(topic).stream()
                    .map(each -> new TopicPartition(topic, each.partition())).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            for (int found = 0; found < count; ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    tellRecord(record);
                    found++;
                }
            }
        }
    }

    private static void group(String topic, String name, String... more) {
        Thread reading = Thread.currentThread();
        boolean[] ended = {false};
        Thread watching = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException e) {
                System.err.println(e);
            }
            synchronized (ended) {
                ended[0] = true;
            }
        });
        watching.setDaemon(true);
        watching.start();
        Properties with = settings("group.id", name, "auto.offset.reset", "earliest",
                "enable.auto.commit", "false");
        for (int i = 0; i < more.length; i += 2) {
            with.put(more[i], more[i + 1]);
        }
        try (KafkaConsumer<String, String> member = new KafkaConsumer<>(with)) {
            member.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                private final TreeSet<Integer> owned = new TreeSet<>();

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                    revoked.forEach(each -> owned.remove(each.partition()));
                    tell("owns", owned);
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                    assigned.forEach(each -> owned.add(each.partition()));
                    tell("owns", owned);
                }
            });
            while (true) {
                synchronized (ended) {
                    if (ended[0]) {
                        break;
                    }
                }
                ConsumerRecords<String, String> records = member.poll(Duration.ofMillis(100));
                records.forEach(Client::tellRecord);
                try {
                    if (!records.isEmpty()) {
                        member.commitSync();
                    }
                } catch (CommitFailedException e) {
                    tell("uncommitted", quoted(e.toString()));
                }
            }
        }
        tell("left", null);
    }

    private static int partitions(Admin admin, String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic)
                .partitions().size();
    }

    private static String retention(Admin admin, ConfigResource topic) throws Exception {
        return quoted(admin.describeConfigs(List.of(topic)).all().get().get(topic)
                .get("retention.ms").value());
    }

    private static boolean isListed(Admin admin, String group) throws Exception {
        return admin.listGroups().all().get().stream().anyMatch(g -> g.groupId().equals(group));
    }

    /** What is found as soon as it is wanted: brokers hear of a change a moment later. */
    private static Object settled(Callable<Object> ask, Object wanted) throws Exception {
        Object found = ask.call();
        for (int tries = 0; tries < 200 && !found.equals(wanted); tries++) {
            Thread.sleep(100);
            found = ask.call();
        }
        return found;
    }

    private static void admin(String topic, String group) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = Admin.create(settings())) {
            NewTopic made = new NewTopic(topic, 3, (short) 3);
            made.configs(Map.of("retention.ms", "3600000"));
            admin.createTopics(List.of(made)).all().get();
            tell("create_topic", settled(
                    () -> List.of(partitions(admin, topic), retention(admin, resource)),
                    List.of(3, quoted("3600000"))));
            AlterConfigOp alter = new AlterConfigOp(
                    new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(alter))).all().get();
            tell("alter_config",
                    settled(() -> retention(admin, resource), quoted("7200000")));
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            tell("create_partitions", settled(() -> partitions(admin, topic), 4));
            tell("list_groups", isListed(admin, group));
            var described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            String state = described.groupState().toString().toLowerCase();
            tell("describe_group", List.of(quoted(state), described.members().size()));
            var committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata();
            tell("group_offsets",
                    committed.get().values().stream().mapToLong(each -> each.offset()).sum());
            TopicPartition zero = new TopicPartition(topic, 0);
            var ends = admin.listOffsets(Map.of(zero, OffsetSpec.latest())).all().get();
            tell("list_offsets", ends.get(zero).offset());
            admin.deleteConsumerGroups(List.of(group)).all().get();
            tell("delete_group", isListed(admin, group));
            admin.deleteTopics(List.of(topic)).all().get();
            tell("delete_topic", settled(
                    () -> admin.listTopics().names().get().contains(topic), false));
        }
    }

    public static void main(String[] given) throws Exception {
        bootstrap = given[0];
        tell("version", quoted(AppInfoParser.getVersion()));
        String topic = given[2];
        switch (given[1]) {
            case "produce", "idempotent" -> produce(
                    String.valueOf(given[1].equals("idempotent")), topic,
                    Integer.parseInt(given[3]), Integer.parseInt(given[4]),
                    Integer.parseInt(given[5]));
            case "read" -> read(topic, Integer.parseInt(given[3]), "read_uncommitted");
            case "committed" -> read(topic, Integer.parseInt(given[3]), "read_committed");
            case "copy" -> Transactions.copy(
                    topic, given[3], given[4], Integer.parseInt(given[5]));
            case "fence" -> Transactions.fence(topic, given[3]);
            case "group" -> {
                // With the consumer protocol brokers set session timeout and heartbeat interval.
                if (System.getProperty("group.protocol") != null) {
                    group(topic, given[3], "group.protocol", System.getProperty("group.protocol"));
                } else {
                    group(topic, given[3], "session.timeout.ms", "10000",
                            "heartbeat.interval.ms", "500");
                }
            }
            case "admin" -> admin(topic, given[3]);
            default -> throw new IllegalArgumentException(given[1]);
        }
    }
}
