// A client of gpkvs from the .proto file alone: get, set, a batch of columns, a pipeline.
// Usage: [GPKVS_CLIENT_TLS_CA=ca.pem] [GPKVS_TOKEN=...] node example.js [HOST:PORT] [path of kv.proto]
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import grpc from '@grpc/grpc-js'
import protoLoader from '@grpc/proto-loader'

const target = process.argv[2] ?? '127.0.0.1:7171'
const proto = process.argv[3] ?? fileURLToPath(new URL('../../proto/v1/kv.proto', import.meta.url))

const definition = protoLoader.loadSync(proto, { keepCase: true, longs: BigInt, defaults: true })
const { KV } = grpc.loadPackageDefinition(definition).gpkvs.v1

// TLS, and the token that goes along with every call. Without TLS everybody on the way could read it.
const { GPKVS_CLIENT_TLS_CA: ca, GPKVS_TOKEN: token } = process.env
const kv = new KV(target, ca ? grpc.credentials.createSsl(readFileSync(ca)) : grpc.credentials.createInsecure())
const login = new grpc.Metadata()
if (token) login.set('authorization', `Bearer ${token}`)

const GET = 1
const SET = 2

/** Calls a method of one request and one answer. */
const call = (method, request) =>
  new Promise((resolve, reject) =>
    kv[method](request, login, (error, answer) => (error ? reject(error) : resolve(answer))))

/** Puts equally many keys and values into the columns of one request. */
function setColumns(keys, values, id = 0) {
  return {
    id,
    ops: Buffer.alloc(keys.length, SET),
    keys: Buffer.concat(keys),
    key_lengths: u32(keys.map((key) => key.length)),
    values: Buffer.concat(values),
    value_lengths: u32(values.map((value) => value.length))
  }
}

/** Puts keys to read into the columns of one request. */
function getColumns(keys, id = 0) {
  return { id, ops: Buffer.alloc(keys.length, GET), keys: Buffer.concat(keys), key_lengths: u32(keys.map((key) => key.length)) }
}

/** All numbers in columns are little-endian. */
function u32(numbers) {
  const column = Buffer.alloc(4 * numbers.length)
  numbers.forEach((number, i) => column.writeUInt32LE(number, 4 * i))
  return column
}

/** Cuts the values of an answer's GETs apart; a miss has status 1 and an empty value. */
function valuesOf(answer) {
  const values = []
  for (let i = 0, at = 0; i < answer.value_lengths.length; i += 4) {
    const length = answer.value_lengths.readUInt32LE(i)
    values.push(answer.values.subarray(at, at + length))
    at += length
  }
  return values
}

// Single operations. Nothing is acknowledged before it is durable.
const { version } = await call('Set', { key: Buffer.from('answer'), value: Buffer.from('42') })
const found = await call('Get', { key: Buffer.from('answer') })
console.log(`get answer: ${found.value} (as set: ${found.version === version})`)
const missing = await call('Get', { key: Buffer.from('no such key') })
console.log(`get no such key: found ${missing.found}`)

// A batch is one request: after a crash all of it is there, or none.
const keys = ['a', 'b', 'c'].map((name) => Buffer.from(name))
await call('Batch', setColumns(keys, ['one', 'two', 'three'].map((text) => Buffer.from(text))))
const read = await call('Batch', getColumns([...keys, Buffer.from('d')]))
console.log(`batch: ${valuesOf(read).slice(0, 3).join(' ')}, status ${[...read.status].join(' ')}`)

// A pipeline: many requests in flight, answers in their order. Writing waits when the server is behind ('drain').
const requests = 100
const perRequest = 100
const stream = kv.Pipeline(login)
const answers = (async () => {
  let stored = 0
  for await (const answer of stream) {
    if (answer.code) console.log(`request ${answer.id} failed with code ${answer.code}: ${answer.message}`)
    else stored += answer.status.length
  }
  return stored
})()
for (let id = 1; id <= requests; id++) {
  const names = Array.from({ length: perRequest }, (_, i) => Buffer.from(`${id}-${i}`))
  if (!stream.write(setColumns(names, names, id))) await once(stream, 'drain')
}
stream.write({ id: requests + 1 }) // an error of one request is its answer, and the stream goes on
stream.end()
console.log(`pipeline: stored ${await answers} values in ${requests} requests`)
kv.close()
