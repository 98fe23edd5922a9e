// franz-go. See tests/clients/programs.py for the verbs.
package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"clients/lines"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	servers    = strings.Split(os.Args[1], ",")
	background = context.Background()
)

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(servers...))...)
	lines.Check(err)
	return made
}

func produce(topic string, first, count, pauseMs int, options ...kgo.Opt) {
	producer := client(append(options, kgo.RequiredAcks(kgo.AllISRAcks()))...)
	for from := first; from < first+count; from += lines.Burst {
		burst := []*kgo.Record{}
		for number := from; number < min(from+lines.Burst, first+count); number++ {
			text := []byte(strconv.Itoa(number))
			burst = append(burst, &kgo.Record{Topic: topic, Key: text, Value: text})
		}
		for _, result := range producer.ProduceSync(background, burst...) {
			lines.Check(result.Err)
			tell("sent", result.Record)
		}
		time.Sleep(time.Duration(pauseMs) * time.Millisecond)
	}
	producer.Close()
}

func tell(what string, record *kgo.Record) {
	number := lines.Number(string(record.Value))
	lines.Tell(what, []int64{int64(record.Partition), record.Offset, int64(number)})
}

func read(topic string, count int) {
	asked := client()
	topics, err := kadm.NewClient(asked).ListTopics(background, topic)
	lines.Check(err)
	asked.Close()
	offsets := map[int32]kgo.Offset{}
	for partition := range topics[topic].Partitions {
		offsets[partition] = kgo.NewOffset().AtStart()
	}
	consumer := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}))
	for found := 0; found < count; {
		fetches := consumer.PollFetches(background)
		lines.Check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			tell("read", record)
			found++
		})
	}
	consumer.Close()
}

func group(topic, name string) {
	ended := lines.InputEnded()
	owned := lines.Owned{}
	member := client(
		kgo.ConsumerGroup(name),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(lines.SessionTimeoutMs*time.Millisecond),
		kgo.HeartbeatInterval(lines.HeartbeatMs*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			owned.Change(parts[topic], nil)
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			owned.Change(nil, parts[topic])
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			owned.Change(nil, parts[topic])
		}),
	)
	for ended.Err() == nil {
		fetches := member.PollFetches(ended)
		if ended.Err() == nil {
			lines.Check(fetches.Err())
		}
		fetches.EachRecord(func(record *kgo.Record) { tell("read", record) })
		if !fetches.Empty() {
			if err := member.CommitUncommittedOffsets(background); err != nil {
				lines.Tell("uncommitted", err.Error())
			}
		}
		member.AllowRebalance()
	}
	member.CloseAllowingRebalance()
	lines.Tell("left", nil)
}

func copyAll(source, target, name string, count int) {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(servers...),
		kgo.TransactionalID(name),
		kgo.ConsumerGroup(name),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(lines.SessionTimeoutMs*time.Millisecond),
		kgo.HeartbeatInterval(lines.HeartbeatMs*time.Millisecond),
	)
	lines.Check(err)
	// The session reads aborted records again.
	for copied, turn := 0, 1; copied < count; {
		fetches := session.PollRecords(background, lines.Burst)
		lines.Check(fetches.Err())
		if fetches.Empty() {
			continue
		}
		commits := turn%lines.Aborted != 0
		turn++
		lines.Check(session.Begin())
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(background, &kgo.Record{Topic: target, Key: record.Key, Value: record.Value}, nil)
		})
		committed, err := session.End(background, kgo.TransactionEndTry(commits))
		lines.Check(err)
		if committed {
			copied += fetches.NumRecords()
			lines.Tell("committed", fetches.NumRecords())
		} else {
			lines.Tell("aborted", fetches.NumRecords())
		}
	}
	session.Close()
}

func admin(topic, name string) {
	asked := kadm.NewClient(client())
	retention := func() string {
		configs, err := asked.DescribeTopicConfigs(background, topic)
		lines.Check(err)
		for _, config := range configs[0].Configs {
			if config.Key == "retention.ms" {
				return config.MaybeValue()
			}
		}
		return ""
	}
	partitions := func() int {
		topics, err := asked.ListTopics(background, topic)
		lines.Check(err)
		return len(topics[topic].Partitions)
	}
	isListed := func() bool {
		groups, err := asked.ListGroups(background)
		lines.Check(err)
		_, is := groups[name]
		return is
	}
	first, second := "3600000", "7200000"
	_, err := asked.CreateTopic(background, 3, 3, map[string]*string{"retention.ms": &first}, topic)
	lines.Check(err)
	whole := func() []any { return []any{partitions(), retention()} }
	lines.Tell("create_topic", lines.Settled(whole, []any{3, first}))
	alter := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &second}}
	_, err = asked.AlterTopicConfigs(background, alter, topic)
	lines.Check(err)
	lines.Tell("alter_config", lines.Settled(retention, second))
	_, err = asked.UpdatePartitions(background, 4, topic)
	lines.Check(err)
	lines.Tell("create_partitions", lines.Settled(partitions, 4))
	lines.Tell("list_groups", isListed())
	groups, err := asked.DescribeGroups(background, name)
	lines.Check(err)
	state := strings.ToLower(groups[name].State)
	lines.Tell("describe_group", []any{state, len(groups[name].Members)})
	fetched, err := asked.FetchOffsets(background, name)
	lines.Check(err)
	sum := int64(0)
	fetched.Each(func(offset kadm.OffsetResponse) { sum += offset.At })
	lines.Tell("group_offsets", sum)
	ends, err := asked.ListEndOffsets(background, topic)
	lines.Check(err)
	end, _ := ends.Lookup(topic, 0)
	lines.Tell("list_offsets", end.Offset)
	deleted, err := asked.DeleteGroups(background, name)
	lines.Check(err)
	lines.Check(deleted.Error())
	lines.Tell("delete_group", isListed())
	_, err = asked.DeleteTopic(background, topic)
	lines.Check(err)
	isThere := func() bool {
		topics, err := asked.ListTopics(background)
		lines.Check(err)
		return topics.Has(topic)
	}
	lines.Tell("delete_topic", lines.Settled(isThere, false))
}

func main() {
	lines.TellVersion("github.com/twmb/franz-go")
	arguments := os.Args[3:]
	switch verb := os.Args[2]; verb {
	case "produce", "idempotent":
		options := []kgo.Opt{}
		if verb == "produce" {
			options = append(options, kgo.DisableIdempotentWrite())
		}
		number := lines.Number
		produce(arguments[0], number(arguments[1]), number(arguments[2]), number(arguments[3]), options...)
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
