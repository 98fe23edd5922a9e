// Kafka Streams with state, exactly once. See tests/clients/programs.py for the verbs.

import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

public final class WordCount {
    public static void main(String[] given) throws Exception {
        String from = given[2];
        String to = given[3];
        Properties with = new Properties();
        with.put("bootstrap.servers", given[0]);
        with.put("application.id", given[4]);
        with.put("state.dir", given[5]);
        with.put("processing.guarantee", "exactly_once_v2");
        with.put("commit.interval.ms", "200");
        with.put("replication.factor", "3");
        with.put("num.stream.threads", "2");
        // Without a cache, so that each count is written and not only the last of an interval.
        with.put("statestore.cache.max.bytes", "0");
        with.put("consumer.auto.offset.reset", "earliest");
        with.put("consumer.session.timeout.ms", "6000");
        with.put("consumer.heartbeat.interval.ms", "500");
        with.put("producer.transaction.timeout.ms", "10000");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(from)
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.as("counts"))
                .toStream()
                .mapValues(String::valueOf)
                .to(to, Produced.with(Serdes.String(), Serdes.String()));
        with.put("default.key.serde", Serdes.StringSerde.class);
        with.put("default.value.serde", Serdes.StringSerde.class);
        Client.tell("version", Client.quoted(AppInfoParser.getVersion()));
        CountDownLatch ended = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), with)) {
            streams.setStateListener((now, before) -> {
                Client.tell("state", Client.quoted(now.toString()));
                if (now == KafkaStreams.State.ERROR) {
                    ended.countDown();
                }
            });
            streams.setUncaughtExceptionHandler(e -> {
                Client.tell("failed", Client.quoted(e.toString()));
                return StreamThreadExceptionResponse.REPLACE_THREAD;
            });
            streams.start();
            Thread watching = new Thread(() -> {
                try {
                    System.in.readAllBytes();
                } catch (java.io.IOException e) {
                    System.err.println(e);
                }
                ended.countDown();
            });
            watching.setDaemon(true);
            watching.start();
            ended.await();
        }
        Client.tell("left", null);
    }
}
