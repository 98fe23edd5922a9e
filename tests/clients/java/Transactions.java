// Transactions of Apache Kafka's own producer. See tests/clients/programs.py for the verbs.

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

final class Transactions {
    /** Every so many transactions one is aborted, and what it read is read again. */
    private static final int ABORTED = 3;

    private static KafkaProducer<String, String> producer(String id) {
        KafkaProducer<String, String> made =
                new KafkaProducer<>(Client.settings("transactional.id", id));
        made.initTransactions();
        return made;
    }

    /** Copies the numbers of one topic to another, until so many are there by its doing. */
    static void copy(String from, String to, String name, int count) {
        Properties with = Client.settings("group.id", name, "auto.offset.reset", "earliest",
                "enable.auto.commit", "false", "isolation.level", "read_committed",
                "max.poll.records", "20", "session.timeout.ms", "10000");
        try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(with);
                KafkaProducer<String, String> writer = producer(name)) {
            reader.subscribe(List.of(from));
            int copied = 0;
            for (int turn = 1; copied < count; ) {
                ConsumerRecords<String, String> records = reader.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    continue;
                }
                boolean commits = turn++ % ABORTED != 0;
                Map<TopicPartition, OffsetAndMetadata> first = new HashMap<>();
                Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
                writer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    TopicPartition where = new TopicPartition(from, record.partition());
                    first.putIfAbsent(where, new OffsetAndMetadata(record.offset()));
                    next.put(where, new OffsetAndMetadata(record.offset() + 1));
                    writer.send(new ProducerRecord<>(to, record.key(), record.value()));
                }
                writer.sendOffsetsToTransaction(next, reader.groupMetadata());
                if (commits) {
                    writer.commitTransaction();
                    copied += records.count();
                } else {
                    writer.flush();
                    writer.abortTransaction();
                    first.forEach(reader::seek);
                }
                Client.tell(commits ? "committed" : "aborted", records.count());
            }
        }
    }

    /** Fences a producer by a second one with its transactional id, and prints whether the first
     * one fails to commit and to begin another transaction. */
    static void fence(String topic, String name) throws Exception {
        try (KafkaProducer<String, String> zombie = producer(name)) {
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>(topic, "0", "-1")).get();
            try (KafkaProducer<String, String> other = producer(name)) {
                other.beginTransaction();
                other.send(new ProducerRecord<>(topic, "0", "1"));
                try {
                    zombie.commitTransaction();
                    Client.tell("fenced", false);
                } catch (ProducerFencedException | InvalidProducerEpochException e) {
                    Client.tell("fenced", true);
                }
                try {
                    zombie.beginTransaction();
                    Client.tell("ended", false);
                } catch (KafkaException e) {
                    Client.tell("ended", true);
                }
                other.commitTransaction();
            }
        }
    }
}
