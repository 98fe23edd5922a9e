// A worker of Kafka Connect, distributed. See tests/clients/programs.py for the verbs.

import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.connect.cli.ConnectDistributed;

public final class ConnectWorker {
    public static void main(String[] given) throws Exception {
        Map<String, String> with = new HashMap<>();
        with.put("bootstrap.servers", given[0]);
        with.put("group.id", given[2]);
        for (String topic : new String[] {"config", "offset", "status"}) {
            with.put(topic + ".storage.topic", given[2] + "-" + topic);
            with.put(topic + ".storage.replication.factor", "3");
        }
        with.put("offset.storage.partitions", "5");
        with.put("key.converter", "org.apache.kafka.connect.storage.StringConverter");
        with.put("value.converter", "org.apache.kafka.connect.storage.StringConverter");
        with.put("exactly.once.source.support", "enabled");
        with.put("offset.flush.interval.ms", "500");
        with.put("listeners", "http://127.0.0.1:0");
        with.put("session.timeout.ms", "6000");
        with.put("heartbeat.interval.ms", "500");
        with.put("scheduled.rebalance.max.delay.ms", "1000");
        var worker = new ConnectDistributed().startConnect(with);
        Client.tell("url", Client.quoted(worker.rest().advertisedUrl().toString()));
        Client.tell("version", Client.quoted(AppInfoParser.getVersion()));
        worker.awaitStop();
    }
}
