// Makes the calls that its standard input asks for, a line of JSON each, all at the same time.
// Usage: node driver.js '{"target": ..., "proto": ..., and options of Client}'
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import grpc from '@grpc/grpc-js'
import { CallError, Client, OutcomeUnknownError } from './gather.js'

const { target, ca, ...options } = JSON.parse(process.argv[2])
if (ca) options.credentials = grpc.credentials.createSsl(readFileSync(ca))
const client = new Client(target, options)

function outcome(found) {
  if (found === null || typeof found === 'boolean') return { found: found ?? false }
  return typeof found === 'bigint' ? { version: Number(found) } : { found: true, value: found.toString('base64') }
}

function failure(error) {
  if (error instanceof OutcomeUnknownError) return { unknown: true, text: error.message }
  if (error instanceof CallError) return { code: error.code, text: error.message }
  return { bug: error.stack }
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, op, key, value, timeout_ms: timeoutMs } = JSON.parse(line)
  const given = [key, value].filter((text) => text !== undefined).map((text) => Buffer.from(text, 'base64'))
  client[op](...given, timeoutMs).then(outcome, failure).then((found) => console.log(JSON.stringify({ id, ...found })))
}
await client.close()
