// sarama. See tests/clients/programs.py for the verbs.
package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"clients/lines"

	"github.com/IBM/sarama"
)

var servers = strings.Split(os.Args[1], ",")

func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Producer.Return.Successes = true
	made.Producer.Retry.Max = 100
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Offsets.AutoCommit.Enable = false
	made.Consumer.Return.Errors = true
	made.Consumer.Group.Session.Timeout = lines.SessionTimeoutMs * time.Millisecond
	made.Consumer.Group.Heartbeat.Interval = lines.HeartbeatMs * time.Millisecond
	return made
}

func produce(topic string, first, count, pauseMs int, settings *sarama.Config) {
	producer, err := sarama.NewSyncProducer(servers, settings)
	lines.Check(err)
	for from := first; from < first+count; from += lines.Burst {
		burst := []*sarama.ProducerMessage{}
		for number := from; number < min(from+lines.Burst, first+count); number++ {
			text := sarama.StringEncoder(strconv.Itoa(number))
			burst = append(burst, &sarama.ProducerMessage{Topic: topic, Key: text, Value: text})
		}
		lines.Check(producer.SendMessages(burst))
		for _, sent := range burst {
			text, _ := sent.Value.Encode()
			number := int64(lines.Number(string(text)))
			lines.Tell("sent", []int64{int64(sent.Partition), sent.Offset, number})
		}
		time.Sleep(time.Duration(pauseMs) * time.Millisecond)
	}
	lines.Check(producer.Close())
}

func tellRecord(record *sarama.ConsumerMessage) {
	number := int64(lines.Number(string(record.Value)))
	lines.Tell("read", []int64{int64(record.Partition), record.Offset, number})
}

func read(topic string, count int) {
	consumer, err := sarama.NewConsumer(servers, config())
	lines.Check(err)
	partitions, err := consumer.Partitions(topic)
	lines.Check(err)
	found := make(chan *sarama.ConsumerMessage)
	for _, partition := range partitions {
		reader, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		lines.Check(err)
		go func() {
			for record := range reader.Messages() {
				found <- record
			}
		}()
	}
	for range count {
		tellRecord(<-found)
	}
}

// member has sarama's callbacks: Setup, a concurrent ConsumeClaim per partition, Cleanup.
type member struct {
	topic string
	owned lines.Owned
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.owned.Change(session.Claims()[m.topic], nil)
	return nil
}

func (m *member) Cleanup(session sarama.ConsumerGroupSession) error {
	m.owned.Change(nil, session.Claims()[m.topic])
	return nil
}

func (m *member) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim,
) error {
	for {
		select {
		case record, is := <-claim.Messages():
			if !is {
				return nil
			}
			tellRecord(record)
			session.MarkMessage(record, "")
			session.Commit()
		case <-session.Context().Done():
			return nil
		}
	}
}

func group(topic, name string) {
	ended := lines.InputEnded()
	joined, err := sarama.NewConsumerGroup(servers, name, config())
	lines.Check(err)
	go func() {
		for err := range joined.Errors() {
			lines.Tell("uncommitted", err.Error())
		}
	}()
	one := &member{topic: topic}
	for ended.Err() == nil {
		if err := joined.Consume(ended, []string{topic}, one); err != nil && err != context.Canceled {
			lines.Check(err)
		}
	}
	lines.Check(joined.Close())
	lines.Tell("left", nil)
}

// copier has sarama's callbacks, as member. Its claims share a producer, one transaction at a time.
type copier struct {
	source, target, name string
	mutex                sync.Mutex
	writer               sarama.SyncProducer
	copied, count, turn  int
	end                  context.CancelFunc
}

func (*copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *copier) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim,
) error {
	for {
		select {
		case record, is := <-claim.Messages():
			if !is {
				return nil
			}
			records := []*sarama.ConsumerMessage{record}
			for len(records) < lines.Burst && len(claim.Messages()) > 0 {
				records = append(records, <-claim.Messages())
			}
			for !c.once(records) {
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func (c *copier) once(records []*sarama.ConsumerMessage) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.turn++
	commits := c.turn%lines.Aborted != 0
	lines.Check(c.writer.BeginTxn())
	for _, record := range records {
		key, value := sarama.ByteEncoder(record.Key), sarama.ByteEncoder(record.Value)
		_, _, err := c.writer.SendMessage(&sarama.ProducerMessage{Topic: c.target, Key: key, Value: value})
		lines.Check(err)
		lines.Check(c.writer.AddMessageToTxn(record, c.name, nil))
	}
	if !commits {
		lines.Check(c.writer.AbortTxn())
		lines.Tell("aborted", len(records))
		return false
	}
	lines.Check(c.writer.CommitTxn())
	lines.Tell("committed", len(records))
	c.copied += len(records)
	if c.copied >= c.count {
		c.end()
	}
	return true
}

func copyAll(source, target, name string, count int) {
	settings := config()
	settings.Producer.Idempotent = true
	settings.Producer.Transaction.ID = name
	settings.Net.MaxOpenRequests = 1
	settings.Consumer.IsolationLevel = sarama.ReadCommitted
	writer, err := sarama.NewSyncProducer(servers, settings)
	lines.Check(err)
	joined, err := sarama.NewConsumerGroup(servers, name, settings)
	lines.Check(err)
	ended, end := context.WithCancel(context.Background())
	one := &copier{source: source, target: target, name: name, writer: writer, count: count, end: end}
	for ended.Err() == nil {
		if err := joined.Consume(ended, []string{source}, one); err != nil && err != context.Canceled {
			lines.Check(err)
		}
	}
	lines.Check(joined.Close())
	lines.Check(writer.Close())
}

func admin(topic, name string) {
	settings := config()
	client, err := sarama.NewClient(servers, settings)
	lines.Check(err)
	asked, err := sarama.NewClusterAdminFromClient(client)
	lines.Check(err)
	retention := func() string {
		resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}}
		entries, err := asked.DescribeConfig(resource)
		lines.Check(err)
		return entries[0].Value
	}
	partitions := func() int {
		topics, err := asked.DescribeTopics([]string{topic})
		lines.Check(err)
		return len(topics[0].Partitions)
	}
	isListed := func() bool {
		groups, err := asked.ListConsumerGroups()
		lines.Check(err)
		_, is := groups[name]
		return is
	}
	first, second := "3600000", "7200000"
	detail := sarama.TopicDetail{
		NumPartitions: 3, ReplicationFactor: 3,
		ConfigEntries: map[string]*string{"retention.ms": &first},
	}
	lines.Check(asked.CreateTopic(topic, &detail, false))
	whole := func() []any { return []any{partitions(), retention()} }
	lines.Tell("create_topic", lines.Settled(whole, []any{3, first}))
	alter := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &second},
	}
	lines.Check(asked.IncrementalAlterConfig(sarama.TopicResource, topic, alter, false))
	lines.Tell("alter_config", lines.Settled(retention, second))
	lines.Check(asked.CreatePartitions(topic, 4, nil, false))
	lines.Tell("create_partitions", lines.Settled(partitions, 4))
	lines.Tell("list_groups", isListed())
	groups, err := asked.DescribeConsumerGroups([]string{name})
	lines.Check(err)
	lines.Tell("describe_group", []any{strings.ToLower(groups[0].State), len(groups[0].Members)})
	fetched, err := asked.ListConsumerGroupOffsets(name, nil)
	lines.Check(err)
	sum := int64(0)
	for _, of := range fetched.Blocks {
		for _, block := range of {
			sum += block.Offset
		}
	}
	lines.Tell("group_offsets", sum)
	// The partition is new, and its leader may not have applied the metadata yet.
	end := func() int64 {
		lines.Check(client.RefreshMetadata(topic))
		offset, err := client.GetOffset(topic, 0, sarama.OffsetNewest)
		if err != nil {
			return -1
		}
		return offset
	}
	lines.Tell("list_offsets", lines.Settled(end, 0))
	lines.Check(asked.DeleteConsumerGroup(name))
	lines.Tell("delete_group", isListed())
	lines.Check(asked.DeleteTopic(topic))
	isThere := func() bool {
		topics, err := asked.ListTopics()
		lines.Check(err)
		_, is := topics[topic]
		return is
	}
	lines.Tell("delete_topic", lines.Settled(isThere, false))
}

func main() {
	lines.TellVersion("github.com/IBM/sarama")
	arguments := os.Args[3:]
	switch verb := os.Args[2]; verb {
	case "produce", "idempotent":
		settings := config()
		if verb == "idempotent" {
			settings.Producer.Idempotent = true
			settings.Net.MaxOpenRequests = 1
		}
		number := lines.Number
		produce(arguments[0], number(arguments[1]), number(arguments[2]), number(arguments[3]), settings)
	case "read":
		read(arguments[0], lines.Number(arguments[1]))
	case "group":
		group(arguments[0], arguments[1])
	case "copy":
		copyAll(arguments[0], arguments[1], arguments[2], lines.Number(arguments[3]))
	case "admin":
		admin(arguments[0], arguments[1])
	}
}
