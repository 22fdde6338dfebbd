// Calls a second of many callers, one call of each at a time: plain calls, and calls that gather.js gathers.
// Usage: [GPKVS_CLIENT_TLS_CA=ca.pem] [GPKVS_TOKEN=...] node load.js [HOST:PORT] [CALLERS] [SECONDS] [path of kv.proto]
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import grpc from '@grpc/grpc-js'
import protoLoader from '@grpc/proto-loader'
import { Client } from './gather.js'

const target = process.argv[2] ?? '127.0.0.1:7171'
const callers = Number(process.argv[3] ?? 64)
const seconds = Number(process.argv[4] ?? 3)
const proto = process.argv[5] ?? fileURLToPath(new URL('../../proto/v1/kv.proto', import.meta.url))

const { GPKVS_CLIENT_TLS_CA: ca, GPKVS_TOKEN: token } = process.env
const credentials = ca ? grpc.credentials.createSsl(readFileSync(ca)) : grpc.credentials.createInsecure()
const login = new grpc.Metadata()
if (token) login.set('authorization', `Bearer ${token}`)

const { KV } = grpc.loadPackageDefinition(protoLoader.loadSync(proto, { keepCase: true })).gpkvs.v1
const kv = new KV(target, credentials)
const call = (method, request) =>
  new Promise((resolve, reject) =>
    kv[method](request, login, (error, answer) => (error ? reject(error) : resolve(answer))))
const client = new Client(target, { credentials, token, proto })

const keyOf = (number) => Buffer.from(`key-${String(number).padStart(12, '0')}`)
const value = Buffer.alloc(100, 'v')

async function measure(name, callOf) {
  let calls = 0
  const begin = performance.now()
  const end = begin + 1000 * seconds
  await Promise.all(Array.from({ length: callers }, async () => {
    while (performance.now() < end) await callOf(keyOf(calls++ % 100_000))
  }))
  const rate = 1000 * calls / (performance.now() - begin)
  console.log(`${name} ${Math.round(rate).toLocaleString('en').padStart(9)} calls a second`)
}

await measure('plain SET   ', (key) => call('Set', { key, value }))
await measure('gathered SET', (key) => client.set(key, value))
await measure('plain GET   ', (key) => call('Get', { key }))
await measure('gathered GET', (key) => client.get(key))
kv.close()
await client.close()
