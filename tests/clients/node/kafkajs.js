// kafkajs. See tests/clients/programs.py for the verbs.
'use strict'

const { readFileSync } = require('node:fs')
const { ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')

const [bootstrap, verb, ...given] = process.argv.slice(2)
const kafka = new Kafka({
  brokers: bootstrap.split(','),
  logLevel: logLevel.ERROR,
  retry: { retries: 20, maxRetryTime: 2000 },
})
const BURST = 20
// One of this many transactions is aborted.
const ABORTED = 3

const tell = (name, value = null) => process.stdout.write(`${JSON.stringify({ [name]: value })}\n`)
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

async function produce(idempotent, topic, first, count, pauseMs) {
  const producer = kafka.producer({ idempotent, maxInFlightRequests: idempotent ? 1 : null })
  await producer.connect()
  for (let from = first; from < first + count; from += BURST) {
    const numbers = Array.from({ length: Math.min(BURST, first + count - from) }, (_, i) => from + i)
    // One after the other: kafkajs locks the sequences of idempotent batches per broker and returns
    // a sequence when a send fails. When a leader moves, two sends get the same one, and one is lost.
    for (const number of numbers) {
      const message = { key: `${number}`, value: `${number}` }
      const [sent] = await producer.send({ topic, acks: -1, messages: [message] })
      tell('sent', [sent.partition, Number(sent.baseOffset), number])
    }
    await sleep(pauseMs)
  }
  await producer.disconnect()
}

const tellRecord = (partition, { offset, value }) =>
  tell('read', [partition, Number(offset), Number(value)])

async function group(topic, name) {
  const member = kafka.consumer({
    groupId: name, sessionTimeout: 10000, heartbeatInterval: 500,
  })
  member.on(member.events.GROUP_JOIN, ({ payload }) =>
    tell('owns', payload.memberAssignment[topic] ?? []))
  member.on(member.events.REBALANCING, () => tell('owns', []))
  await member.connect()
  await member.subscribe({ topics: [topic], fromBeginning: true })
  process.stdin.resume().on('end', async () => {
    await member.disconnect()
    tell('left')
    process.exit(0)
  })
  await member.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, commitOffsetsIfNecessary, uncommittedOffsets, isStale }) => {
      for (const record of batch.messages) {
        if (isStale()) return
        tellRecord(batch.partition, record)
        resolveOffset(record.offset)
      }
      try {
        await commitOffsetsIfNecessary(uncommittedOffsets())
      } catch (error) {
        tell('uncommitted', `${error}`)
        throw error
      }
    },
  })
}

// Copies the numbers of one topic to another in transactions until it has copied the given number.
async function copy(source, target, name, count) {
  const writer = kafka.producer({ transactionalId: name, idempotent: true, maxInFlightRequests: 1 })
  const reader = kafka.consumer({ groupId: name, sessionTimeout: 10000, heartbeatInterval: 500 })
  await writer.connect()
  await reader.connect()
  await reader.subscribe({ topics: [source], fromBeginning: true })
  let [copied, turn] = [0, 0]
  const once = async (messages, partition) => {
    const commits = ++turn % ABORTED !== 0
    const transaction = await writer.transaction()
    await transaction.send({ topic: target, acks: -1, messages })
    const offset = `${Number(messages.at(-1).offset) + 1}`
    await transaction.sendOffsets({
      consumerGroupId: name, topics: [{ topic: source, partitions: [{ partition, offset }] }],
    })
    await (commits ? transaction.commit() : transaction.abort())
    tell(commits ? 'committed' : 'aborted', messages.length)
    return commits
  }
  const done = new Promise((resolve) => reader.run({
    autoCommit: false,
    eachBatch: async ({ batch, heartbeat, resolveOffset }) => {
      for (let from = 0; from < batch.messages.length; from += BURST) {
        const messages = batch.messages.slice(from, from + BURST)
        while (!await once(messages, batch.partition)) await heartbeat()
        resolveOffset(messages.at(-1).offset)
        copied += messages.length
      }
      if (copied >= count) resolve()
    },
  }))
  await done
  await reader.disconnect()
  await writer.disconnect()
}

// Polls until the result is the wanted one: brokers apply a change a moment after its response.
async function settled(ask, wanted) {
  let found = await ask()
  for (let i = 0; i < 200 && JSON.stringify(found) !== JSON.stringify(wanted); i++) {
    await sleep(100)
    found = await ask()
  }
  return found
}

async function admin(topic, name) {
  const asked = kafka.admin()
  await asked.connect()
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const partitions = async () =>
    (await asked.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
  const retention = async () => {
    const { resources } = await asked.describeConfigs({ resources: [resource] })
    return resources[0].configEntries.find((entry) => entry.configName === 'retention.ms').configValue
  }
  const isListed = async () =>
    (await asked.listGroups()).groups.some((group) => group.groupId === name)
  await asked.createTopics({
    waitForLeaders: true,
    topics: [{
      topic,
      numPartitions: 3,
      replicationFactor: 3,
      configEntries: [{ name: 'retention.ms', value: '3600000' }],
    }],
  })
  const whole = async () => [await partitions(), await retention()]
  tell('create_topic', await settled(whole, [3, '3600000']))
  await asked.alterConfigs({
    resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '7200000' }] }],
  })
  tell('alter_config', await settled(retention, '7200000'))
  await asked.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
  tell('create_partitions', await settled(partitions, 4))
  tell('list_groups', await isListed())
  const { groups: [described] } = await asked.describeGroups([name])
  tell('describe_group', [described.state.toLowerCase(), described.members.length])
  const fetched = await asked.fetchOffsets({ groupId: name })
  const committed = fetched.flatMap((each) => each.partitions.map(({ offset }) => Number(offset)))
  tell('group_offsets', committed.reduce((sum, offset) => sum + offset, 0))
  const ends = await asked.fetchTopicOffsets(topic)
  tell('list_offsets', Number(ends.find(({ partition }) => partition === 0).high))
  await asked.deleteGroups([name])
  tell('delete_group', await isListed())
  await asked.deleteTopics({ topics: [topic] })
  tell('delete_topic', await settled(async () => (await asked.listTopics()).includes(topic), false))
  await asked.disconnect()
}

const manifest = `${__dirname}/node_modules/kafkajs/package.json`
tell('version', JSON.parse(readFileSync(manifest)).version)
const verbs = {
  produce: (topic, ...numbers) => produce(false, topic, ...numbers.map(Number)),
  idempotent: (topic, ...numbers) => produce(true, topic, ...numbers.map(Number)),
  group,
  copy: (source, target, name, count) => copy(source, target, name, Number(count)),
  admin,
}
verbs[verb](...given).catch((error) => {
  console.error(error)
  process.exit(1)
})
